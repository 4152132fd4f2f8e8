"""The account as a page: one stacked bar for each day, job, array, user, tag or policy, and the numbers under it.

`account` has the numbers; `hpcdl report` prints the same ones.
"""

from collections.abc import Sequence
from html import escape

from hpcdl.core.model.units import count
from hpcdl.report.account import NAMES, Account, AccountLine, Shares
from hpcdl.report.html import document, drawing, legend, note, table_of_cells
from hpcdl.report.names import breakable, job_mark, short_names

MOST = 200
"""Bars in one drawing; the largest ones are drawn, and all are in the table."""

COLOURS = {"useful": "p2", "starting": "p4", "saving": "p0", "rescaling": "p6", "lost": "p1", "idle": "bar"}
_TITLES = {"job": "Jobs", "array": "Arrays", "user": "Users", "tag": "Tags", "day": "Days", "policy": "Policies"}
_ROW = 24
_LABELS = 190
_WIDEST = 86.0
"""Per cent of the width for the longest bar: the rest is for its number."""


def account_page(title: str, told: str, accounts: Sequence[Account]) -> str:
    """One self-contained HTML file. `told`: the time that it is of, in words; the first account has the sums."""
    first = accounts[0]
    parts = [f"<h1>{escape(title)}</h1>", note(told), note(summary(first), "figures")]
    for each in accounts:
        parts += [f"<h2>{_TITLES[each.by]}</h2>", _legend(), _drawing(each), _numbers(each)]
    return document(title, parts, script=True)


def summary(account: Account) -> str:
    """The account in a sentence."""
    shares = account.shares
    if shares.available <= 0:
        return "No GPU was there in that time."
    parts = ", ".join(
        f"{_percent(getattr(shares, name), shares)} {name}" for name in NAMES[1:] if getattr(shares, name)
    )
    rest = f"; {parts}" if parts else ""
    gpus = count(account.gpus, "GPU")
    return f"{hours(shares.available)} GPU-hours of {gpus}: {_percent(shares.useful, shares)} useful{rest}."


def hours(seconds: float) -> str:
    """GPU-hours of GPU-seconds, to be read in a column: three decimals, one from 100 on."""
    number = seconds / 3600
    return "<0.001" if 0 < number < 0.0005 else f"{number:.1f}" if number >= 100 else f"{number:.3f}"


def _percent(seconds: float, shares: Shares) -> str:
    return f"{100 * seconds / shares.available:.1f} %"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _legend() -> str:
    full = '<rect width="26" height="12" class="fill"/>'
    return legend(((COLOURS[name], full, name) for name in NAMES), height=12)


def _drawing(account: Account) -> str:
    lines = account.lines
    if len(lines) > MOST:
        kept = {line.key for line in sorted(lines, key=lambda line: -line.shares.available)[:MOST]}
        lines = tuple(line for line in lines if line.key in kept)
    # GPUs that were idle for a week would flatten the bars of all jobs: theirs is cut.
    lengths = [line.shares.available for line in lines]
    longest = max(
        (length for length, line in zip(lengths, lines, strict=True) if line.key), default=max(lengths, default=0.0)
    )
    short = short_names((line.name for line in lines), 20)
    labels, bars = [], []
    for number, line in enumerate(lines):
        y = _ROW * number
        text = label(account.by, line)
        shown = text.removesuffix(line.name) + short[line.name]
        labels.append(f'<text x="0" y="{y + 15}" class="tick">{escape(shown)}<title>{escape(text)}</title></text>')
        bars.append(_bar(line, y, longest))
    height = _ROW * len(lines) + 4
    left_out = len(account.lines) - len(lines)
    more = note(f"{count(left_out, 'smaller one')} only in the table") if left_out else ""
    return drawing("".join(labels), "".join(bars), width=_LABELS, height=height, title="GPU-hours") + more


def _bar(line: AccountLine, y: int, longest: float) -> str:
    parts, x = [], 0.0
    cut = line.shares.available > longest
    whole = line.shares.available if cut else longest
    for name in NAMES:
        seconds = getattr(line.shares, name)
        wide = _WIDEST * seconds / whole if whole > 0 else 0.0
        if wide > 0:
            title = f"{name}: {hours(seconds)} GPU-hours, {_percent(seconds, line.shares)}"
            parts.append(
                f'<rect x="{x:.3f}%" y="{y + 3}" width="{wide:.3f}%" height="{_ROW - 7}" class="fill {COLOURS[name]}">'
                f"<title>{escape(title)}</title></rect>"
            )
        x += wide
    number = f"{hours(line.shares.available)} GPU-h"
    if cut:
        number += ", cut"
        parts.append(f'<text x="{x - 3:.3f}%" y="{y + 17}" class="cut">//</text>')
    parts.append(
        f'<svg x="{x:.3f}%" y="{y}" overflow="visible"><text x="8" y="15" class="value">{escape(number)}</text></svg>'
    )
    return "".join(parts)


def label(by: str, line: AccountLine) -> str:
    """The name of a line of the account."""
    return f"{line.key} {line.name}" if by in ("job", "array") and line.key else line.name


def _numbers(account: Account) -> str:
    header = (account.by, "GPU-hours", *NAMES, "goodput", "GPUs used", "memory used", "suspends", "failures")
    rows = []
    for line in account.lines:
        shares = line.shares
        used = map(_share, (shares.goodput, line.use.util, line.use.memory))
        numbers = (hours(shares.available), *(hours(getattr(shares, name)) for name in NAMES))
        mark = f"{job_mark(int(line.key))} " if account.by in ("job", "array") and line.key else ""
        name = mark + breakable(label(account.by, line))
        rows.append((name, *map(escape, numbers), *used, str(line.suspends), str(line.failures)))
    title = f"GPU-hours by {account.by}"
    right = frozenset(range(1, len(header)))
    return table_of_cells(header, rows, right, kind="table cards", caption=title, hidden=True)
