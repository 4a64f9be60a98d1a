"""Text becomes batches.

sources.py, corpus.py                files, folders and hub data sets become documents
corpus_check.py                      look at the beginning of every file of a corpus
lines.py                             the decompressed, decoded, bounded lines of a file
json_rows.py, delimited.py           rows of JSON, CSV and TSV
table_layout.py                      the delimiter and the header of CSV and TSV
parquet.py                           rows of Parquet
normalization.py                     case, accents and words, by the script of a corpus
vocabulary.py, wordpiece.py          train a WordPiece vocabulary; tokenize
tokenizer_files.py                   the files with which transformers loads a tokenizer
stock_tokenizer.py                   compare the rows of transformers' tokenizer with ours
examples.py                          cut documents into padded rows [CLS] A [SEP] B [SEP]
sharding.py, shard_writer.py         cut a corpus into shards, in parallel, resumable
parts.py                             the part of a corpus that one of many machines cuts
manifest.py, manifest_checks.py      what a folder of shards holds; compare it with the files
records.py                           JSON with a checksum; the list of a corpus's files
shards.py, merging.py                open, verify and merge shards
options.py, prepare.py               options of vocab and shard; both in one go for a recipe
dataset.py, shuffle.py               memory-mapped rows; the shuffle of an epoch
batch_schedule.py                    the number of rows of each step
batches.py, dataloader.py            collate rows into batches; load and prefetch them by step
tables.py                            labelled rows for fine-tuning and inference
docstring_corpus.py                  a first corpus from installed libraries
missing_articles.py                  a first data set for tagging from that corpus
"""
