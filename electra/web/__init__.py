"""The playground and inference server of `electra serve`: a page and JSON endpoints.

requests.py     what a client sends: bodies, JSON and their limits
guard.py        who may send it: Host, Origin, token, rate
batching.py     a queue and a worker thread for each model
models.py       the models of the command line
tokens.py       pre-trained networks: hidden words, samples, P(replaced)
answers.py      fine-tuned models: inputs to examples, answers to JSON
uploads.py      tables: a file to examples, answers to CSV
curves.py       the journal of a run as series of points
routes.py       the endpoints, and the files in page/
server.py       sockets, signals and the process
"""
