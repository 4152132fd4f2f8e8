"""Jobs in CSV: what its numbers mean, and what is told of bad ones."""

import gzip
import math
from pathlib import Path

import pytest

from hpcdl.core.model.job import Sharing
from hpcdl.core.model.profile import Profile
from hpcdl.sim.readers import read_throughputs, read_workload
from hpcdl.sim.workload import NodeSpell, Workload, WorkloadError, check_fits, cluster

NODES = cluster(4, 4, "v100")
PROFILES = {
    profile.name.casefold(): profile
    for profile in (
        Profile("ResNet-50", ((1, 1, 2.0), (1, 2, 3.0), (1, 4, 5.0)), startup_s=10, aliases=("rn50",)),
        Profile("VGG (batch size 64)", ((1, 1, 1.0), (1, 4, 2.5)), kinds=(("k80", ((1, 1, 0.5),)),)),
        Profile("LM (batch size 5)", ((1, 1, 1.0),)),
        Profile("LM (batch size 10)", ((1, 1, 1.0),)),
        Profile("BERT", ((1, 1, 1.0),)),
        Profile("BERT-inference", ((1, 1, 7.0), (1, 2, 9.0))),
    )
}


def read(folder: Path, text: str, nodes: tuple[NodeSpell, ...] = NODES, name: str = "jobs.csv") -> Workload:
    path = folder / name
    path.write_text(text)
    return read_workload(path, PROFILES, nodes)


def refused(folder: Path, text: str, nodes: tuple[NodeSpell, ...] = NODES) -> str:
    """The error without the path, which it must begin with; one line."""
    with pytest.raises(WorkloadError) as caught:
        check_fits(read(folder, text, nodes))
    told = str(caught.value)
    assert "\n" not in told
    return told.removeprefix(f"{folder / 'jobs.csv'}:")


def test_columns_may_be_in_any_order_and_models_in_any_case(tmp_path: Path) -> None:
    text = "# ours\nGPUs,model,steps,submit_s,user,kind,deadline_s,name\n"
    text += "2,resnet-50,100,0,ana,,900,one\n\n4, RN50 ,200,5,,training,,\n"
    workload = read(tmp_path, text)
    first, second = workload.jobs
    assert (first.submit_s, first.name, first.steps, first.user, first.deadline_s) == (0, "one", 100, "ana", 900)
    assert first.profile is second.profile is PROFILES["resnet-50"]
    assert (second.kind, second.deadline_s, second.name) == ("training", None, "RN50/2")
    assert workload.nodes == NODES
    assert workload.notes == ()


@pytest.mark.parametrize(
    "gpus, lowest, highest, counts, draw, nodes, nodes_max",
    [
        ("3", 1, 3, (), 3, 1, None),
        ("2:4", 2, 4, (), None, 1, None),
        ("2:2", 2, 2, (), None, 1, None),
        ("2:", 2, None, (), None, 1, None),
        ("1|2|4", 1, 4, (1, 2, 4), None, 1, None),
        ("4 1 2", 1, 4, (1, 2, 4), None, 1, None),
        ("8", 1, 4, (), 4, 2, None),  # no node has 8: two have
        ("6:6", 3, 3, (), None, 2, None),
        ("2:8", 2, 4, (), None, 1, 2),
    ],
)
def test_gpus_are_a_number_a_range_or_a_list(
    tmp_path: Path, gpus: str, lowest: int, highest: int | None, counts: tuple[int, ...], draw: int | None,
    nodes: int, nodes_max: int | None,
) -> None:  # fmt: skip
    job = read(tmp_path, f"submit_s,model,gpus,steps\n0,bert,{gpus},5\n").jobs[0]
    assert (job.gpus_min, job.gpus_max, job.gpus_counts, job.draw) == (lowest, highest, counts, draw)
    assert (job.nodes, job.nodes_max) == (nodes, nodes_max)


def test_a_column_of_nodes_makes_gpus_those_of_each(tmp_path: Path) -> None:
    first, second = read(tmp_path, "submit_s,model,gpus,nodes,steps\n0,bert,4,2,5\n0,bert,1:4,1:3,5\n").jobs
    assert (first.gpus_min, first.gpus_max, first.nodes, first.nodes_max, first.draw) == (1, 4, 2, None, 4)
    assert (second.gpus_min, second.gpus_max, second.nodes, second.nodes_max) == (1, 4, 1, 3)


def test_a_duration_becomes_the_steps_of_the_profile(tmp_path: Path) -> None:
    text = "submit_s,model,gpus,duration_s\n0,resnet-50,2,110\n0,vgg,1,100\n0,resnet-50,4,3\n"
    first, second, short = read(tmp_path, text).jobs
    assert first.steps == 300  # (110 s - 10 s of start-up) at 3 steps/s
    assert second.steps == 100  # its only batch size may be left out
    assert short.steps == 1
    assert read(tmp_path, text, cluster(1, 4, "k80")).jobs[1].steps == 50


def test_a_job_without_profile_is_as_fast_as_its_log_says(tmp_path: Path) -> None:
    workload = read(tmp_path, "submit_s,model,gpus,duration_s\n0,theirs,2,600\n9,,8,50\n")
    first, second = workload.jobs
    assert first.steps == 600
    assert [first.profile.rate(gpus) for gpus in (1, 2, 4)] == [0.5, 1.0, 1.0]
    assert (second.profile.rate(4, 2), second.profile.rate(4, 1)) == (1.0, 0.5)
    assert len(workload.notes) == 2
    assert "'theirs' has no profile" in workload.notes[0]
    assert "first in line 2" in workload.notes[0]


def test_inference_has_no_communication_unless_it_was_measured(tmp_path: Path) -> None:
    text = "submit_s,model,gpus,steps,kind\n0,resnet-50,4,9,inference\n0,bert,2,9,Inference\n0,vgg,2,9,inference\n"
    linear, measured, kinds = (job.profile for job in read(tmp_path, text).jobs)
    assert [linear.rate(gpus) for gpus in (1, 3, 4)] == pytest.approx([2, 6, 8])
    assert linear.rate(4, 3) == pytest.approx(24)
    assert linear.startup_s == 10
    assert measured is PROFILES["bert-inference"]
    assert kinds.on("k80").rate(4) == pytest.approx(2)


def test_gzip_is_read_as_plain_text_is(tmp_path: Path) -> None:
    text = "submit_s,model,gpus,steps\n0,bert,1,5\n"
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    packed = read_workload(tmp_path / "jobs.csv.gz", PROFILES, NODES)
    assert packed.jobs == read(tmp_path, text).jobs


HEAD = "submit_s,model,gpus,steps,duration_s,deadline_s,kind\n"


@pytest.mark.parametrize(
    "text, told",
    [
        ("submit_s,model,gpus,step\n", "1: 'step': an unknown column; did you mean steps?"),
        ("submit_s,model,gpus,colour\n", "1: 'colour': an unknown column; known are submit_s, model"),
        ("submit_s,model,steps\n", "1: gpus: missing from the header"),
        ("submit_s,model,gpus,gpus\n", "1: 'gpus': a column that is there twice"),
        ("", " is empty"),
        ("submit_s,model,gpus\n", " names no job"),
        (HEAD + "0,BERT,1,5\n", "2: has 4 cells, but the header names 7"),
        (HEAD + "0,BERT,1,5,,,\n9,BERT,1,5,,,\n8,BERT,1,5,,,\n", "4: submit_s: 8 is before that of the row above, 9"),
        (HEAD + "-1,BERT,1,5,,,\n", "2: submit_s: must be 0 or more, got '-1'"),
        (HEAD + "nan,BERT,1,5,,,\n", "2: submit_s: expected a number, got 'nan'"),
        (HEAD + "inf,BERT,1,5,,,\n", "2: submit_s: must be 1e+10 or less"),
        (HEAD + "1_0,BERT,1,5,,,\n", "2: submit_s: expected a number"),
        (HEAD + "0,BRT,1,5,,,\n", "2: model: no profile is called 'BRT'; did you mean 'bert'"),
        (HEAD + "0,LM,1,5,,,\n", "2: model: 'LM' may be any of 'LM (batch size 5)', 'LM (batch size 10)'"),
        (HEAD + "0,LM,1,,5,,\n", "2: model: 'LM' may be any of"),
        (HEAD + "0,,1,5,,,\n", "2: model: is empty"),
        (HEAD + "0,BERT,0,5,,,\n", "2: gpus: must be 1 or more, got '0'"),
        (HEAD + "0,BERT,0:2,5,,,\n", "2: gpus: '0:2': at least 1"),
        (HEAD + "0,BERT,4:2,5,,,\n", "2: gpus: '4:2': the maximum 2 is below"),
        (HEAD + "0,BERT,1|1,5,,,\n", "2: gpus: expected different numbers"),
        (HEAD + "0,BERT,1|0,5,,,\n", "2: gpus: must be 1 or more"),
        (HEAD + "0,BERT,1.5,5,,,\n", "2: gpus: expected a whole number"),
        (HEAD + "0,BERT,two,5,,,\n", "2: gpus: expected a number, got 'two'"),
        (HEAD + "0,BERT,1,,,,\n", "2: steps, duration_s: neither is given"),
        (HEAD + "0,BERT,1,5,5,,\n", "2: steps, duration_s: both are given"),
        (HEAD + "0,BERT,1,0,,,\n", "2: steps: must be 1 or more"),
        (HEAD + "0,BERT,1,,0,,\n", "2: duration_s: must be more than 0"),
        (HEAD + "9,BERT,1,5,,9,\n", "2: deadline_s: 9 is not after the submit at 9"),
        (HEAD + "9,BERT,1,5,,-3,\n", "2: deadline_s: -3 is not after the submit at 9"),
        (HEAD + "0,BERT,1,5,,nan,\n", "2: deadline_s: expected a number"),
        (HEAD + "0,BERT,1,5,,,batch\n", "2: kind: expected training or inference, got 'batch'"),
        (HEAD + '0,"BERT,1,5,,,\n', "2: not a table: unexpected end of data"),
    ],
)
def test_bad_rows_are_refused_with_line_and_column(tmp_path: Path, text: str, told: str) -> None:
    assert refused(tmp_path, text).startswith(told)


def test_a_job_that_can_never_fit_is_named_with_the_largest_node(tmp_path: Path) -> None:
    many = refused(tmp_path, HEAD + "0,BERT,64:64,5,,,\n")
    assert many == (
        "job BERT/1 can never fit: it needs 16 nodes with 4 GPUs or more of one type, and never are more than "
        "4 there at once; the largest node, n1, has 4"
    )
    listed = refused(tmp_path, HEAD + "0,BERT,8|16,5,,,\n")
    assert listed == "job BERT/1 can never fit: it needs 8 GPUs on a node, and the largest node, n1, has 4"
    assert "has no nodes: say how many" in refused(tmp_path, HEAD + "0,BERT,1,5,,,\n", ())


def test_the_nodes_of_a_job_have_gpus_of_one_type(tmp_path: Path) -> None:
    mixed = (*cluster(2, 4, "v100"), *cluster(2, 4, "p100", first=3))
    told = refused(tmp_path, HEAD + "0,BERT,12,5,,,\n", mixed)
    assert "needs 3 nodes with 1 GPU or more of one type, and never are more than 2" in told
    check_fits(read(tmp_path, HEAD + "0,BERT,8,5,,,\n", mixed))


def test_lengths_that_cannot_be_meant(tmp_path: Path) -> None:
    assert "2: steps: a job that trains for more than 10 years" in refused(tmp_path, HEAD + "0,BERT,1,1e15,,,\n")
    assert "2: duration_s: a job that trains for" in refused(tmp_path, HEAD + "0,,1,,1e10,,\n")


def test_a_gpu_type_that_was_not_measured_is_noted(tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text("model_and_batch_per_gpu,gpu,gpus,steps_per_s\nA,v100,1,5\nA,k80,1,1\n")
    rows = tmp_path / "jobs.csv"
    rows.write_text(HEAD + "0,A,1,5,,,\n")
    for kind, notes in (("k80", 0), ("a100", 1)):
        found = read_workload(rows, read_throughputs(table, kind), cluster(1, 4, kind))
        assert len(found.notes) == notes
    assert found.notes[0].startswith(
        "A was not measured on 'a100': there it has its default curve (measured: k80, v100)"
    )


def test_nodes_that_are_never_there_together_do_not_add_up(tmp_path: Path) -> None:
    apart = (NodeSpell("a", 4, "", 0, 100), NodeSpell("b", 4, "", 100, math.inf))
    assert "never are more than 1 there at once" in refused(tmp_path, HEAD + "0,BERT,8:8,5,,,\n", apart)
    together = (NodeSpell("a", 4, "", 0, 101), NodeSpell("b", 4, "", 100, math.inf))
    check_fits(read(tmp_path, HEAD + "0,BERT,8:8,5,,,\n", together))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(201 << 20), 1)
    for name, data, told in (
        ("bomb.csv.gz", bomb, "holds more than 200 MiB"),
        ("torn.csv.gz", bomb[:100], "a damaged gzip file"),
        ("latin.csv", b"submit_s,model,gpus,steps\n0,\xe9,1,5\n", "latin.csv:2: not UTF-8"),
        ("what", b"hello\n", "its format is not known"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(WorkloadError, match=told):
            read_workload(tmp_path / name, PROFILES, NODES)
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(WorkloadError, match=r"No such file|Is a directory"):
            read_workload(path, PROFILES, NODES, form="csv")
    with pytest.raises(WorkloadError, match="no format is called 'xml'"):
        read_workload(tmp_path / "what", PROFILES, form="xml")


def test_the_format_is_found_by_what_a_file_holds(tmp_path: Path) -> None:
    jobs = read(tmp_path, "submit_s,model,gpus,steps\n0,bert,1,5\n").jobs
    assert read(tmp_path, "submit_s,model,gpus,steps\n0,bert,1,5\n", name="plain").jobs == jobs
    assert read(tmp_path, "schema: 1\njobs: [{model: bert, steps: 5}]\n", name="ours").jobs[0].steps == 5


def test_jobs_may_share_gpus(tmp_path: Path) -> None:
    head = "submit_s,model,gpus,steps,share,gpu_memory\n"
    front, back, alone = read(
        tmp_path, f"{head}0,rn50,1,9,foreground:5,10G\n0,rn50,1,9,background,900\n0,rn50,1,9,,\n"
    ).jobs
    assert (front.share, front.gpu_memory_mib) == (Sharing("foreground", 0.05), 10 * 1024)
    assert (back.share, back.gpu_memory_mib) == (Sharing("background"), 900)
    assert (alone.share, alone.gpu_memory_mib) == (None, None)
    assert refused(tmp_path, f"{head}0,rn50,1,9,both,1G\n").startswith("2: share: 'both': give foreground")
    assert refused(tmp_path, f"{head}0,rn50,1,9,background,much\n").startswith("2: gpu_memory: ")
