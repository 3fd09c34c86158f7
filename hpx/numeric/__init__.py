"""The numeric check: a model run unsharded and sharded on local processes, and compared.

`checking` is the entry, `preparing` what it does before any process starts, `report` what comes out
of it. `pool` and `worker` are processes that run functions; `ranks` is what they run here:
`building` makes the model, `shrinking` a small one of the same structure, `feeding` its inputs,
`step` both training steps, `precision` keeps them in float64, `measure` compares. Only where
something differs, `recording` and `locating` look for the module.
"""
