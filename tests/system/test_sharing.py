"""Two real jobs on one emulated GPU: a foreground and a background that agreed to it."""

from collections.abc import Callable

import pytest

from tests.system.cluster import Cluster, kill

pytestmark = pytest.mark.timeout(600)

FRONT = ("--share", "foreground", "--gpu-memory", "8G")
BACK = ("--share", "background", "--gpu-memory", "4G")


def holders(cluster: Cluster) -> list[tuple[int, ...]]:
    """Of the one GPU: the job that has it, and its background."""
    gpu = cluster.client.get("/v1/nodes")["nodes"][0]["gpus"][0]
    return [() if gpu[key] is None else (gpu[key]["job"],) for key in ("holder", "background")]


def test_two_jobs_train_on_one_gpu(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(gpus=1, sharing=True).start()
    cluster.hold()
    front = cluster.submit(steps=200, options=FRONT)
    back = cluster.submit(steps=200, options=BACK)
    alone = cluster.submit(steps=60)
    cluster.until_step(front, 20)
    cluster.until_step(back, 20)
    assert holders(cluster) == [(front,), (back,)]
    assert cluster.job(alone)["state"] == "QUEUED", "it has not agreed to anything"
    assert f"job {back} runs on its GPUs as background" in cluster.cli("why", str(front))
    assert f"{front}.1 + {back}.1" in cluster.cli("ls", "gpus")

    # The foreground goes while the background's processes are on the GPU, and that goes on as the foreground.
    cluster.cli("suspend", str(front))
    cluster.until_state(front, "SUSPENDED")
    cluster.until(lambda: holders(cluster) == [(back,), ()])
    assert cluster.job(back)["incarnation"] == 1, "nothing was asked of its trainer"

    # Back again, the foreground does not wait for it: it starts anew beside that one.
    cluster.cli("resume", str(front))
    cluster.until(lambda: holders(cluster) == [(front,), (back,)])
    cluster.release()
    cluster.until_done(front, back, alone)
    for job, steps in ((front, 200), (back, 200), (alone, 60)):
        cluster.check_weights(job, steps)
    assert cluster.job(back)["suspends"] == 1


@pytest.mark.long
def test_an_agent_that_comes_back_finds_both(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(gpus=1, sharing=True).start()
    cluster.hold()
    front = cluster.submit(steps=100, options=FRONT)
    back = cluster.submit(steps=100, options=BACK)
    cluster.until_step(front, 20)
    cluster.until_step(back, 20)
    agent = cluster.agent_pid()
    cluster.kill_daemon()
    kill(agent)
    cluster.start()
    cluster.until(lambda: cluster.status()["agents"][0]["connected"])
    assert cluster.agent_pid() != agent
    assert holders(cluster) == [(front,), (back,)]
    cluster.release()
    cluster.until_done(front, back)
    for job in (front, back):
        cluster.check_weights(job, 100)
        assert cluster.job(job)["incarnation"] == 1, "the new agent left both as they were"


def test_under_deeppool_a_background_runs_alone_and_beside_but_is_in_nobodys_way(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(gpus=1).start()
    cluster.cli("config", "policy", "deeppool")
    cluster.hold()
    back = cluster.submit(steps=200, options=BACK)
    cluster.until_step(back, 20)
    assert cluster.job(back)["incarnation"] == 1
    front = cluster.submit(steps=100, options=FRONT)
    cluster.until_step(front, 20)
    assert holders(cluster) == [(front,), (back,)], "it was started beside the background, which trains on"
    assert cluster.job(back)["incarnation"] == 1
    # One that shares with nobody waits for the foreground, and for no background.
    alone = cluster.submit(steps=60)
    cluster.release()
    cluster.until_done(front, alone, back)
    for job, steps in ((front, 100), (alone, 60), (back, 200)):
        cluster.check_weights(job, steps)
    assert cluster.job(front)["incarnation"] == 1
