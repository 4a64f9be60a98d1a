"""The paper's tables and figures as data, run at any budget.

plan                    a trial, its arms and a scale, read from TOML files
options, sweep          options of `electra trials run`; the trials, arms and tasks they name
arms, budget            the arms at a scale; how long each arm trains
shards                  the shards that the runs read
scoring                 the tasks that a network is scored on
jobs                    every run that is needed, once
plan_file               each arm and seed, and its run folders
worker_pool, run_job    run the jobs, one after the other or several at once
findings, findings_file
                        what was run so far; the same as one small file
"""
