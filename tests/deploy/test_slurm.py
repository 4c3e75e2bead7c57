"""The batch scripts with SLURM's commands played by small scripts: what runs where, and what a warning or an end leads to."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_app.runs import find_runs
from tests.deploy.support import DEPLOY, DIGITS, checkout
from tests.forked import MAIN, Popen
from tests.helpers import LEARNING, command

SCRIPTS = sorted((DEPLOY / "slurm").iterdir())
ARRAY = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0", "MINE": "4711_0"}
ASKED = dict(os.environ)  # before any test: what others set in this process is nothing to the ranks
SEEDS, DDP = "deploy/slurm/seeds.sbatch", "deploy/slurm/ddp.sbatch"
# srun starts every rank, each the only one of its node, and returns the worst exit code; of a SIGTERM it kills them.
# scancel sends its signal to the ranks of task 0, or of a job that is no array: 4711, the id of the job of task 0, is that of
# the whole array, too. scontrol notes that it was called, and fails as often as BUSY says.
STANDINS = {
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        trap 'kill -KILL ${ranks[@]}' TERM
        for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
            SLURM_PROCID=$rank SLURM_NODEID=$rank SLURM_LOCALID=0 "$@" & ranks+=($!)
        done
        echo "${ranks[@]}" > ranks
        for rank in "${ranks[@]}"; do wait "$rank" || { now=$?; ((now <= worst)) || worst=$now; }; done
        exit ${worst:-0}
    """,
    "scancel": '[[ $2 == "$MINE" ]] && read -ra ranks < ranks && kill "-${1#--signal=}" "${ranks[@]}"',
    "scontrol": 'echo "$@" >> requeued; (($(wc -l < requeued) > ${BUSY:-0}))',
}
SAVES = "trap 'exit 143' TERM; until [[ -s ranks ]]; do sleep 0.01; done; touch started; while :; do sleep 0.05; done"
HANGS = "trap '' TERM; until [[ -s ranks ]]; do sleep 0.01; done; touch started; while :; do sleep 0.05; done"


@pytest.fixture
def cluster(tmp_path) -> Path:
    """A checkout with the stand-ins in its folder bin."""
    folder = checkout(tmp_path)
    for name, body in STANDINS.items():
        script(folder / "bin" / name, body)
    return folder


def script(file: Path, body: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{body}\n")
    file.chmod(0o755)
    return file


def environment(cluster: Path, **variables: str) -> dict[str, str]:
    job = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_JOB_NAME": "skipscope"} | ({} if variables.get("MINE") == "4711" else ARRAY)
    own = {"PATH": f"{cluster / 'bin'}:{os.environ['PATH']}", "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    own["PYTHON"] = sys.executable
    return ASKED | job | own | variables


def submit(cluster: Path, name: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a batch script to its end; one that hangs is killed with all its ranks."""
    call = ["timeout", "--kill-after=5", "200", "bash", name, *words]
    return subprocess.run(call, cwd=cluster, env=environment(cluster, **variables), capture_output=True, text=True)


def interrupted(cluster: Path, rank: str, interrupt, name: str = SEEDS, **variables: str) -> tuple[int, int]:
    """Exit code of a script whose rank runs ``rank`` when ``interrupt(process)`` comes, and how often it asked to be requeued."""
    python = str(script(cluster / "bin" / "rank", rank))
    call = ["bash", name, "configs/res20.yaml"]
    grace = "1" if rank == HANGS else "60"  # it ends when the rank does
    own = environment(cluster, PYTHON=python, GRACE=grace, PAUSE="0", **variables)
    process = subprocess.Popen(call, cwd=cluster, env=own)
    deadline = time.monotonic() + 120
    while not (cluster / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    interrupt(process)
    code = process.wait(120)
    asked = (cluster / "requeued").read_text().splitlines() if (cluster / "requeued").exists() else []
    assert {*asked} <= {f"requeue {own['MINE']}"}
    return code, len(asked)


def warn(process: subprocess.Popen) -> None:
    """What SLURM does before the time limit: SIGUSR1 to the batch script, which has set its trap long ago."""
    caught = Path(f"/proc/{process.pid}/status")
    while not int(caught.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGUSR1 - 1) & 1:
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_bash_can_read_it(file):
    subprocess.run(["bash", "-n", file], check=True)


def test_shellcheck_has_nothing_to_say():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    said = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=DEPLOY.parent, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("name", [SEEDS, DDP])
def test_a_job_is_warned_and_may_be_requeued(name):
    """SIGUSR1 goes to the script alone (B:): a rank that still imports would die of it, and Lightning has its own use."""
    options = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", (DEPLOY.parent / name).read_text(), re.MULTILINE)
    assert ("requeue", "") in options
    assert re.fullmatch(r"B:USR1@\d+", dict(options)["signal"])
    assert dict(options)["open-mode"] == "append"


def test_before_the_time_limit_the_ranks_save_and_the_job_is_requeued(cluster):
    assert interrupted(cluster, SAVES, warn) == (143, 1)


def test_a_job_that_is_no_array_is_saved_and_requeued_by_its_own_number(cluster):
    assert interrupted(cluster, SAVES, warn, DDP, MINE="4711") == (143, 1)


@pytest.mark.parametrize("busy", [2, 9])
def test_requeueing_is_tried_three_times(cluster, busy, capfd):
    assert interrupted(cluster, SAVES, warn, BUSY=str(busy)) == (143, 3)
    assert ("requeue 4711_0 failed: submit the job again" in capfd.readouterr().err) == (busy > 2)


def test_ranks_that_hang_are_killed_and_the_job_is_requeued(cluster):
    code, requeued = interrupted(cluster, HANGS, warn)
    assert code != 0
    assert requeued == 1


def test_a_cancelled_job_is_not_requeued(cluster):
    def cancel(_):
        call = [cluster / "bin" / "scancel", "--signal=TERM", "4711_0"]
        subprocess.run(call, cwd=cluster, env=environment(cluster), check=True)

    assert interrupted(cluster, SAVES, cancel) == (143, 0)


@pytest.mark.parametrize("code", [0, 2])
def test_the_job_ends_as_its_rank_does(cluster, code):
    python = str(script(cluster / "bin" / "rank", f"exit {code}"))
    assert submit(cluster, SEEDS, "configs/res20.yaml", PYTHON=python).returncode == code
    assert not (cluster / "requeued").exists()


@pytest.mark.parametrize(
    ("task", "seeds", "said"), [("7", "1", "7-7 --run.name res20-seed07"), ("2", "4", "8-11 --run.name res20-seed08")]
)
def test_a_task_has_one_seed_or_the_next_few(cluster, task, seeds, said):
    ((words, _),) = ranks_of(cluster, SEEDS, "configs/res20.yaml", SLURM_ARRAY_TASK_ID=task, SEEDS=seeds)
    assert f"--model.seeds {said} --ckpt_path last" in " ".join(words)


def ranks_of(cluster: Path, name: str, *words: str, **variables: str) -> list[tuple[list[str], dict[str, str]]]:
    """Of each rank of a job, the words behind main.py and the environment: noted by the ranks, not run."""
    note = 'printf "%s\\0" "$@" > "words$SLURM_PROCID"; env -0 > "env$SLURM_PROCID"'
    done = submit(cluster, name, *words, PYTHON=str(script(cluster / "bin" / "rank", note)), **variables)
    assert done.returncode == 0, done.stderr
    found = []
    for rank in range(len([*cluster.glob("words?")])):
        noted = [(cluster / f"{what}{rank}").read_text().split("\0")[:-1] for what in ("words", "env")]
        assert noted[0][0] == "main.py"
        found.append((noted[0][1:], dict(each.split("=", 1) for each in noted[1])))
    return found


def run_ranks(cluster: Path, name: str, config: str, *options: str, **variables: str) -> list[str]:
    """What the ranks of a job say that run at the same time, and end well."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [
        Popen([sys.executable, MAIN, *words], cwd=cluster, env=environ, **streams)
        for words, environ in ranks_of(cluster, name, config, *DIGITS, *LEARNING, *options, **variables)
    ]
    said = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    return said


@pytest.mark.slow
def test_two_tasks_of_an_array_and_the_report_on_both(cluster):
    options = [f"--model.arms.{arm}.net.init_args.depth=5" for arm in ("plain", "residual")]
    for task in ("0", "1"):
        run_ranks(cluster, SEEDS, "configs/pair20.yaml", *options, SLURM_ARRAY_TASK_ID=task)
    runs = find_runs([cluster / "runs"])
    assert [(run.label, run.config()["model"]["seeds"]) for run in runs] == [
        ("pair20-seed00", "0-0"),
        ("pair20-seed01", "1-1"),
    ]
    merged = command("report", *(run.path for run in runs), "--out", cluster / "page.html", cwd=cluster)
    assert merged.returncode == 0, merged.stderr
    assert "(2 seeds)" in (cluster / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "nets", "jobs"), [("ddp", 1, (1, 2)), ("seeds", 3, (2,))])
def test_two_nodes_share_out_batches_or_nets_and_resume(cluster, strategy, nets, jobs):
    """Two processes that take themselves for nodes of one rank each, over gloo; requeued, they go on as any run does."""
    for epochs in jobs:
        port = str(20_000 + (3 * os.getpid() + epochs) % 12_000)  # below those that the system gives away
        nodes = {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        options = ("--model.net.init_args.depth", "5", "--model.seeds", str(nets))
        options += ("--trainer.max_epochs", str(epochs))
        said = run_ranks(cluster, DDP, "configs/res20.yaml", *options, STRATEGY=strategy, **nodes)
        assert "MEMBER: 2/2" in "".join(said)
        (run,) = find_runs([cluster / "runs"])
        assert (run.label, run.finished) == ("res20", epochs)
    log = run.log()
    wrong = 20 * log.loc[log["name"] == "test/error", "value"]
    assert len(wrong) == 3 * nets
    assert wrong.tolist() == pytest.approx(wrong.round().tolist())  # each of the 20 images counted once
