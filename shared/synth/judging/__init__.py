"""Judging: rubrics, the judges that apply them, and the request for a rollout's scores."""
