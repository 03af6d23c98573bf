"""The breaks: one line of the product each, what replaces it, and the tests that must fail then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """A defect in one line.

    name: the guarantee that it removes. text: of one line, or a part of it; it occurs once in the product.
    becomes: its replacement. tests: files or functions of tests, of which one must fail.
    """

    name: str
    text: str
    becomes: str
    tests: tuple[str, ...]


_GATEWAY = "tests/unit/gateway"
_LEARNER = "tests/unit/trainer/learner"
_ROLLOUTS = "tests/unit/rollouts"

BREAKS = (
    # Keys and organisations.
    Break(
        "a route requires its scope",
        "lacking = [scope.value for scope in scopes if scope not in caller.scopes]",
        "lacking = list[str]()",
        (f"{_GATEWAY}/test_required_scopes.py", "tests/service/gateway/native/test_keys.py"),
    ),
    Break(
        "a judge's call requires inference and write",
        "return (Scope.WRITE, Scope.INFERENCE) if asks_model else (Scope.WRITE,)",
        "return (Scope.WRITE,)",
        (f"{_GATEWAY}/test_required_scopes.py",),
    ),
    Break(
        "a list of jobs is one organisation's",
        'return _page(self._db, "jobs", JobRow, f"org = ? AND {condition}", [org, *values],',
        'return _page(self._db, "jobs", JobRow, condition, values,',
        (f"{_GATEWAY}/test_job_lists.py",),
    ),
    Break(
        "an idempotency key belongs to its organisation",
        'digest = hashlib.sha256(f"{org}\\n{route}\\n{key}".encode()).hexdigest()',
        'digest = hashlib.sha256(f"{route}\\n{key}".encode()).hexdigest()',
        ("tests/unit/test_ids.py", "tests/service/gateway/native/test_jobs.py"),
    ),
    Break(
        "an expired key is not valid",
        "return self.revoked_at is None and not self.expired",
        "return self.revoked_at is None",
        (f"{_GATEWAY}/test_ended_keys.py", "tests/service/gateway/native/test_keys.py"),
    ),
    Break(
        "an organisation has at most its streams",
        "if taken[org] >= quota:",
        "if taken[org] > quota:",
        (f"{_GATEWAY}/test_admission.py", "tests/service/gateway/test_org_limits.py"),
    ),
    Break(
        "an organisation sends at most its burst",
        "if bucket.tokens < 1:",
        "if bucket.tokens < 0:",
        (f"{_GATEWAY}/test_admission.py", "tests/service/gateway/test_org_limits.py"),
    ),
    Break(
        "a service's call is for one receiver",
        "if not hmac.compare_digest(expected.encode(), mac.encode()):",
        "if not mac:",
        ("tests/unit/test_service_secrets.py",),
    ),
    Break(
        "a child process has no secret of the service",
        "return name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))",
        "return name in _NAMES or name.startswith(_PREFIXES)",
        ("tests/unit/runtime/test_child_environment.py",),
    ),
    Break(
        "a URL of a user reaches public addresses only",
        "return not is_metadata(ip) and not any(ip in network for network in _SPECIAL)",
        "return not is_metadata(ip)",
        ("tests/unit/test_http_guard.py",),
    ),
    Break(
        "every resolved address is checked",
        "admitted = [a for a in addresses if policy.admits(a)]",
        "admitted = addresses",
        ("tests/unit/test_http_guard.py",),
    ),
    Break(
        "a command in the sandbox has at most its memory",
        "if memory is not None and resident_bytes(pids, limit=memory) > memory:",
        "if memory is None:",
        ("tests/unit/sandbox/test_escapes.py::test_what_is_over_a_limit_is_ended_with_all_its_processes",),
    ),
    # The log.
    Break(
        "an earlier owner appends nothing",
        "headers = {EXPECTED: str(fence.seq), EXPECTED_SUBJECT: fence.subject} | _ttl(ttl)",
        "headers = _ttl(ttl)",
        ("tests/service/bus/test_job_log.py::test_a_zombie_attempt_cannot_commit",),
    ),
    Break(
        "a retried append has the id of the first one",
        '{MSG_ID: f"{subject}:{id}", SCHEMA: str(spec_of(event).version)',
        '{MSG_ID: f"{subject}:{time.time()}", SCHEMA: str(spec_of(event).version)',
        ("tests/service/bus/test_job_log.py::test_the_same_publish_twice_is_one_event",),
    ),
    Break(
        "a cancelled job has ended",
        "TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})",
        "TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.REJECTED})",
        ("tests/unit/jobs/test_lifecycle.py",),
    ),
    Break(
        "the read model counts the trained tokens",
        'tokens = job.trained_tokens + int(e.values.get("trained_tokens", 0))',
        'tokens = int(e.values.get("trained_tokens", 0))',
        (f"{_GATEWAY}/test_projection.py",),
    ),
    Break(
        "a blob that differs from its digest is not read",
        "if hashlib.sha256(body).hexdigest() != ref.sha256:",
        "if not body:",
        ("tests/unit/test_blob_packs.py", "tests/unit/test_blob_trees.py"),
    ),
    Break(
        "two checkpoints are kept for a resume",
        "_KEPT_FOR_RESUME = 2",
        "_KEPT_FOR_RESUME = 1",
        ("tests/unit/trainer/owner/test_checkpoint_retention.py",),
    ),
    # Rollouts.
    Break(
        "a rollout is tried at most as often as its budget allows",
        "if tries >= self._max_tries:",
        "if tries > self._max_tries:",
        (f"{_ROLLOUTS}/collection/test_collector.py", f"{_ROLLOUTS}/collection/test_request_runner.py"),
    ),
    Break(
        "too many abandoned rollouts end the collection",
        "if len(self._abandoned) > max(1, int(self._num_rollouts * MAX_FAILED_SHARE)):",
        "if len(self._abandoned) > self._num_rollouts:",
        (f"{_ROLLOUTS}/collection/test_request_runner.py",),
    ),
    Break(
        "an advantage is scaled by the group's deviation",
        "return (centred / (r.std() + _EPSILON) if by_std else centred).tolist()",
        "return centred.tolist()",
        (f"{_ROLLOUTS}/rewards/test_credit.py", f"{_ROLLOUTS}/collection/test_batching.py"),
    ),
    Break(
        "too old a sequence is not trained",
        "return np.maximum.reduceat(lag_T, batch.cu_seqlens[:-1]) <= self.job.max_staleness",
        "return np.maximum.reduceat(lag_T, batch.cu_seqlens[:-1]) <= self.job.max_staleness + 1",
        (f"{_LEARNER}/test_rl.py::test_a_sequence_that_is_too_stale_is_counted_and_not_trained",),
    ),
    # Training.
    Break(
        "a clip takes the worse of two surrogates",
        "return torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)",
        "return torch.minimum(-ratio_N * advantage_N, -clipped_N * advantage_N)",
        (f"{_LEARNER}/losses/test_losses.py",),
    ),
    Break(
        "the ratio of GSPO is a mean over a sequence",
        "(inputs.logp_N - inputs.old_logp_N).detach(), inputs.cu_seqlens)",
        "(inputs.logp_N - inputs.old_logp_N).detach(), inputs.cu_seqlens) * inputs.cu_seqlens.diff()",
        (f"{_LEARNER}/losses/test_gspo.py",),
    ),
    Break(
        "the weight of a stale token is truncated",
        "weight_N = log_ratio_N.exp().clamp(max=job.token_truncation)",
        "weight_N = log_ratio_N.exp()",
        (f"{_LEARNER}/losses/test_importance_correction.py",),
    ),
    Break(
        "DPO prefers the chosen reply",
        "h_P = reward_P2[:, 0] - reward_P2[:, 1]",
        "h_P = reward_P2[:, 1] - reward_P2[:, 0]",
        (f"{_LEARNER}/losses/test_dpo.py",),
    ),
    Break(
        "positions begin again with each packed sequence",
        'positions = np.concatenate([np.arange(n) for n in lengths]) if packing == "packed" else None',
        'positions = np.arange(width) if packing == "packed" else None',
        (
            f"{_LEARNER}/data/test_packing.py::test_each_trained_token_is_predicted_from_the_one_before_it",
            f"{_LEARNER}/data/test_packing.py",
        ),
    ),
    Break(
        "a token is predicted from the one before it",
        "predicts.append(trained - start - 1 + offset)",
        "predicts.append(trained - start + offset)",
        (
            f"{_LEARNER}/data/test_packing.py::test_each_trained_token_is_predicted_from_the_one_before_it",
            f"{_LEARNER}/data/test_packing.py",
        ),
    ),
    Break(
        "only weighted tokens are trained",
        "return start + 1 + np.flatnonzero(self.weights[start + 1 : end])",
        "return np.arange(start + 1, end)",
        (
            f"{_LEARNER}/data/test_packing.py::test_each_trained_token_is_predicted_from_the_one_before_it",
            f"{_LEARNER}/data/test_packing.py",
        ),
    ),
    Break(
        "a merged adapter is scaled by its rank",
        'scale = float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)',
        'scale = float(config["lora_alpha"]) / rank**0.5',
        ("tests/unit/weights/test_policy_file.py",),
    ),
    Break(
        "weights that differ from their digest are not served",
        "return sorted(n for n in computed.keys() | digests.keys() if computed.get(n) != digests.get(n))",
        "return sorted(n for n in computed.keys() ^ digests.keys())",
        ("tests/unit/weights/test_policy_file.py",),
    ),
    Break(
        "a resumed run has the optimizer's moments",
        "self._moments[name].load(kind, value)",
        "self._moments[name].load(kind, value * 0)",
        (f"{_LEARNER}/optim/test_optimizers.py::test_a_run_that_resumes_has_the_bytes_of_one_that_went_through",),
    ),
    Break(
        "a resumed run has the state of torch's generator",
        'torch.set_rng_state(_decode(state["torch"]))',
        '_decode(state["torch"])',
        (f"{_LEARNER}/test_rng.py", f"{_LEARNER}/optim/test_optimizers.py"),
    ),
    Break(
        "warm-up ends where the decay begins",
        "progress = (step - warmup) / max(1, total - warmup)",
        "progress = step / max(1, total)",
        (
            f"{_LEARNER}/test_sft.py::"
            "test_the_learning_rate_is_half_way_down_in_the_middle_of_the_steps_after_the_warm_up",
            f"{_LEARNER}/test_sft.py",
        ),
    ),
)
