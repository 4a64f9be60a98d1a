"""Benchmarks, and the tools that make the tables of README.md and docs/.

Each command says with --help what it needs. Results are JSON files in `benchmarks/results`.

speed          pretrain_gpu (pretrain_sides, step_profile), pretrain_cpu, finetune_gpu,
               finetune_cpu, inference_gpu, processes, serve, shard, help; peer is what ours is
               compared with
learning       quickstart, small_gpu, plateau, encoders (block_variants), sanity, minimal_pairs
a record       record (record_plan, record_corpus, record_jobs, record_speed,
               record_results, record_comparison), then ship: a model that comes with the package
reliability    crash (crash_commands, crash_trials, file_operations), power_loss, bit_flips, soak
               (soak_runs), hostile_folders (hostile_inputs, hostile_changes)
same numbers   same_numbers compares two checkouts bit by bit
all on a GPU   batch runs the commands of gpu_evidence.toml, each with a limit, until a deadline
estimates      scale (site holds its assumptions)
tables         tables writes them all: pretraining_tables, finetuning_tables, inference_tables,
               encoder_tables, record_tables, reliability_tables; plots, encoder_plots and
               record_plots draw
shared         harness (options and result files), ceiling (what a machine can do), markdown
"""
