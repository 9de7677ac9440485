"""How the page looks: light or dark as the reader's system is, and light on paper."""

from __future__ import annotations

from typing import Final

_LIGHT: Final = """
--page:#f6f7f9;--card:#fff;--ink:#16202c;--muted:#566373;--grid:#d9dee5;--one:#2f6fde;--two:#e07b00;
--three:#b3261e;--four:#15803d;--five:#7c4dcc;--six:#7a8794;--good:#15803d;--bad:#b3261e;"""
_DARK: Final = """
--page:#10151b;--card:#1a2129;--ink:#e8edf2;--muted:#9aa8b6;--grid:#36414d;--one:#6ea8ff;--two:#ffab4a;
--three:#ff7b72;--four:#56c271;--five:#b794ff;--six:#8b98a5;--good:#56c271;--bad:#ff7b72;"""
CSS: Final = (
    f":root{{color-scheme:light dark;{_LIGHT}}}\n@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"
    """*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:30px;line-height:1.2;margin:0 0 6px}
h2{font-size:20px;margin:0 0 4px}
h3{font-size:15px;margin:22px 0 4px}
p{margin:0 0 12px}
.muted,.note{color:var(--muted)}
.note{font-size:14px;max-width:76ch}
.lead{margin-bottom:24px;overflow-wrap:anywhere}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin-bottom:20px}
.card,section{background:var(--card);border:1px solid var(--grid);border-radius:10px}
.card{padding:14px 16px}
.card b{display:block;font-size:25px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums}
.card span{font-size:13.5px;color:var(--muted);display:block}
.good{color:var(--good)}.bad{color:var(--bad)}
section{padding:22px 24px;margin-bottom:20px}
section svg{display:block;width:100%;height:auto;margin:10px 0 6px;font-family:inherit}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;margin-top:10px;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--muted);text-align:left;white-space:nowrap;vertical-align:bottom}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--grid)}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right;white-space:nowrap}
.t{overflow-wrap:anywhere;min-width:7em}
.k{min-width:15em}
.bar{width:14%;min-width:80px}
.bar i{display:block;height:10px;border-radius:3px;background:var(--one)}
details{margin-top:10px}
summary{cursor:pointer;color:var(--muted);font-size:14px}
nav{margin-bottom:24px;font-size:14px;display:flex;flex-wrap:wrap;gap:4px 16px}
a{color:var(--one)}
code{font-size:.92em}
footer{color:var(--muted);font-size:13.5px}
@media (max-width:700px){main{padding:24px 12px}section{padding:16px 14px}
.plot{overflow-x:auto}.plot svg{min-width:640px}}
@media print{:root{"""
    + _LIGHT
    + """--page:#fff}body{font-size:12px}main{max-width:none;padding:0}
section{break-inside:auto}.card,.plot,tr{break-inside:avoid}h2,h3{break-after:avoid}nav{display:none}}
"""
)
