"""Which module feeds which: dataflow between the modules of a model, read off a traced graph.

`hpx.flow.trace.trace_feeds` traces a model, without data where it can: by ``torch.export`` on fake
tensors, else by ``torch.fx`` with the modules that own parameters as leaves.
`hpx.flow.feeds.add_feeds` puts what it finds into a `ModuleGraph` as edges. Where neither way
works, the reason is kept and nothing is guessed.
"""
