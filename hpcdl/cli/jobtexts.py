"""What `hpcdl show` says of a job in words of its own."""

from hpcdl.cli.output import Row
from hpcdl.cli.rows import moment_text
from hpcdl.core.beginnings import folder_within


def deadline_text(row: Row) -> str:
    """When a job is to be done, and what was foreseen of that last; "" without a deadline."""
    found: Row = row.get("deadline") or {}
    if not found:
        return ""
    at = moment_text(found["at"])
    finished = row.get("finished_at")
    if finished is not None:
        return f"{at} ({'passed' if finished > found['at'] or row.get('state') != 'DONE' else 'met'})"
    unheeded = f"; {found['warning']}" if found.get("warning") else ""
    if found.get("meets") is None:
        return at + unheeded
    said = "expected to be met" if found["meets"] else "expected to be missed"
    if found.get("slipped"):
        said = f"slipped: {said}"
    ends = f", done by {moment_text(found['ends_at'])} if nothing else comes" if found.get("ends_at") else ""
    return f"{at} ({said} since {moment_text(found['since'])}: {round(100 * found['probability'])} %{ends}){unheeded}"


def git_text(spec: Row) -> str:
    """`3f2a9c1d4e5f on main, with changed files`; "" where nothing is known."""
    found: Row | None = spec.get("git")
    if not found:
        return ""
    branch = f" on {found['branch']}" if found.get("branch") else ""
    changed = {True: ", with changed files", None: ", changed files not looked for in time"}.get(found.get("dirty"), "")
    return f"{found['commit'][:12]}{branch}{changed}"


def checkpoints_text(row: Row) -> str:
    """Where its checkpoints are, where that is not the daemon's choice alone."""
    folder = (row.get("spec") or {}).get("checkpoint_dir")
    beginning = int(row.get("beginning") or 0)
    if not folder and not beginning:
        return ""
    return folder_within(folder or f"$HPCDL_HOME/checkpoints/{row['id']}", beginning)
