"""Judging: rubrics, the judges that apply them, and the question that a rollout's scores are asked by."""
