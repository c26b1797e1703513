"""Methods that learn a stream: each a `Learner`, on the contract of `base`."""
