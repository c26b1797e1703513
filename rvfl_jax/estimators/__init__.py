"""The learners as scikit-learn estimators: learned, merged, saved and exported."""
