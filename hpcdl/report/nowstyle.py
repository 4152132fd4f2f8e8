"""What the page of now looks like, beside the style of all pages; on paper too."""

CSS = """
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 18px}
header h1{margin:0}
header .note{flex-basis:100%;margin:0}
.as-of{margin:0;color:var(--soft);font-size:13px}
.figures-row{display:flex;flex-wrap:wrap;gap:10px 14px;margin:14px 0 6px}
.figure{flex:1 1 190px;background:var(--lane);border-radius:8px;padding:8px 14px 10px}
.figure b{font-size:22px;font-variant-numeric:tabular-nums}
.figure small{display:block;color:var(--soft);font-size:12px;line-height:1.35;margin-top:3px}
.figure svg{display:block;margin:6px 0 2px;border-radius:4px}
h2{margin:26px 0 4px;font-size:17px}
h2 .soft{font-size:14px;font-weight:400}
section{break-inside:auto}
.alarm{color:var(--bad);font-weight:600}
.nodes{display:flex;flex-wrap:wrap;gap:10px 22px;margin:6px 0}
.node-card{break-inside:avoid}
.node-card h3{font-size:13px;margin:4px 0}
.node-card h3 .soft{font-weight:400}
.tiles{display:flex;flex-wrap:wrap;gap:4px;max-width:384px}
.gpu .back{fill:currentColor;fill-opacity:.28}
.gpu .full,.progress .full,.share{fill:currentColor}
.free{color:var(--line)}.free .back{fill:var(--lane);fill-opacity:1;stroke:var(--line)}
.free .full{fill:none}
.bad{color:var(--bad)}.bad .back{fill:var(--bad-soft);fill-opacity:1;stroke:var(--bad)}
.away{color:var(--grey)}.away .back{fill:none;stroke:var(--grey);stroke-dasharray:3 2}
.empty{fill:var(--line)}
.memory{fill:var(--soft)}
.tile-name{font-size:12px;font-weight:600;fill:var(--ink)}
.tile-load{font-size:11px;fill:var(--ink);fill-opacity:.85}
.cells{display:flex;flex-wrap:wrap;gap:7px 12px;margin:8px 0}
.cells.packed{gap:4px 9px}
.cell{line-height:0}
.cell span{display:block;font-size:10.5px;line-height:1.3;color:var(--soft)}
.cell .alarm{display:inline;color:var(--bad)}
.alarmed{outline:1px solid var(--bad);outline-offset:1px}
.wide table{width:100%}
.wide td{vertical-align:top;unicode-bidi:isolate}
.wide td:nth-child(2),.wide td:last-child{white-space:normal;overflow-wrap:anywhere}
.wide td:last-child{min-width:18em;width:40%;color:var(--soft)}
.wide td:nth-child(2){font-weight:600;min-width:8em}
.progress{vertical-align:middle}
.stale main{filter:grayscale(1);opacity:.72}
.stale .as-of,.stale .as-of span{color:var(--bad);font-weight:600}
@media print{:root{--page:#fff;--ink:#000;--soft:#444;--line:#ccc;--lane:#f3f5f7}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{max-width:none;padding:0}body{font-size:11px}table{font-size:10px}.wide .soft{font-size:inherit}
h2{break-after:avoid}tr{break-inside:avoid}.drawing{break-inside:avoid}.table{overflow:visible}}
"""
