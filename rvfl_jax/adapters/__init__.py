"""The estimators as other libraries for streams have theirs: river and CapyMOA.

    from rvfl_jax.adapters.river import RiverClassifier, RiverMultiLabelClassifier, RiverRegressor
    from rvfl_jax.adapters.capymoa import CapyMOAClassifier

Each module imports its library, which is not among this package's requirements: river comes with
`rvfl-jax[river]`, and CapyMOA, which needs a Java runtime, is installed by itself.

Beyond these no adapter is needed: the estimators are scikit-learn's, and whatever takes a classifier
with `partial_fit` takes them, such as CapyMOA's `SKClassifier` and river's `convert_sklearn_to_river`.
"""
