"""Every compared method, tuned alike and run on the same streams: `python -m experiments.compared`.

`contenders` says which methods there are, `spaces` what of each is tuned, `settings` the streams;
`tuning` chooses, `tables` measures, `curves` varies the batches, `pictures` draws.
"""
