"""The pages run as written: README and quickstart from a fresh copy, the others against a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, session_pages
from tests.docs.session import Session

#: These begin with nothing but the repository.
FROM_NOTHING = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
#: Pages whose RL job learns.
AGENTS, TASK_APPS = ROOT / "docs" / "agents.md", ROOT / "docs" / "task-apps.md"
FROM_OPENAI = ROOT / "docs" / "from-openai.md"
OTHERS = [page for page in session_pages() if page not in (*FROM_NOTHING, AGENTS, TASK_APPS, FROM_OPENAI)]

pytestmark = pytest.mark.timeout(1800)


def name(page: Path) -> str:
    return page.name


@pytest.mark.xdist_group("from nothing")
@pytest.mark.parametrize("page", FROM_NOTHING, ids=name)
def test_a_page_that_begins_with_nothing_runs_as_written(page: Path, tmp_path: Path):
    session = Session(tmp_path / "synth")
    # The same job files, with all of their steps, are proved to learn by tests/e2e/cli/test_demo.py. After 200 steps
    # one answer in 20 is right; after 100 one in 300, and then an RL job may end because it sees no reward.
    session.shorten("demo", sft=200, rl=3)
    try:
        session.run_page(page)
    finally:
        session.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """What the other pages take for granted: a cluster, a base model, a dataset and the Math task app."""
    session = Session(tmp_path_factory.mktemp("docs") / "synth")
    try:
        session.ok(f"synthctl up --detach --port {session.ports['8000']}")
        session.ok("synthctl models make tiny-qwen3")
        session.ok("python -m synth.demo.math.dataset --out math.jsonl --rows 2048")
        yield session
    finally:
        session.close()


@pytest.fixture
def session(cluster: Session) -> Iterator[Session]:
    """The cluster for one page: what the page runs in its second terminal ends with it."""
    yield cluster
    while cluster.background:
        cluster.background.pop().end()


@pytest.mark.xdist_group("against a cluster")
@pytest.mark.parametrize("page", OTHERS, ids=name)
def test_a_page_runs_as_written(page: Path, session: Session):
    session.run_page(page)


@pytest.mark.xdist_group("against a cluster")
def test_the_page_on_openai_leads_from_an_export_to_a_model_that_is_better(session: Session):
    session.run_page(FROM_OPENAI)
    report = (session.folder / "comparison" / "report.md").read_text()
    assert "\nB is better: the interval does not contain 0.\n" in report
    rows = (session.folder / "distilled" / "rows.jsonl").read_text().splitlines()
    assert len(rows) > 32


@pytest.mark.xdist_group("against a cluster")
def test_the_sample_job_of_the_task_app_page_learns(session: Session):
    session.run_page(TASK_APPS)
    [job] = [job for job in session.made() if job["kind"] == "rl"]
    assert job["state"] == "succeeded"
    reward = session.metric(job["id"], "reward_mean")
    assert len(reward) == 12
    # The mean of the last third against that of the first.
    assert sum(reward[-4:]) / 4 > 2 * sum(reward[:4]) / 4, reward


def agents_page(session: Session, *, iterations: int) -> list[float]:
    """Run the page of agents; returns the mean reward of each iteration of its RL job."""
    session.shorten("maze", rl=iterations)
    session.run_page(AGENTS)
    [job] = [job for job in session.made() if job["kind"] == "rl"]
    assert job["state"] == "succeeded"
    assert set(session.metric(job["id"], "branch_breaks")) == {0}
    reward = session.metric(job["id"], "reward_mean")
    assert len(reward) == iterations
    return reward


@pytest.mark.xdist_group("against a cluster")
def test_the_tool_agent_of_the_agents_page_trains_as_one_sequence(session: Session):
    agents_page(session, iterations=4)


@pytest.mark.soak
def test_the_tool_agent_of_the_agents_page_learns(session: Session):
    reward = agents_page(session, iterations=25)
    # Means of four steps, 256 rollouts, differ by chance by 0.03 (one standard deviation), and by 0.3 when it learns.
    assert sum(reward[-4:]) / 4 > sum(reward[:4]) / 4 + 0.2, reward
