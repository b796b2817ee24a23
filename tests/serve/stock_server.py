"""A stock llama-server: ``python stock_server.py MODEL PORT [embeddings]``; ends when its stdin
does.
"""

import os
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel = 8192, 2  # each slot has half
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.cpuparams.n_threads = 1
params.endpoint_slots = params.endpoint_metrics = True
if sys.argv[3:] == ["embeddings"]:
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server = xllamacpp.Server(params)
sys.stdin.read()
os._exit(0)  # its threads need no farewell
