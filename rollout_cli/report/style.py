"""The style of the report: light or dark as the reader's system is, and readable on a telephone."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --muted: #5b6675; --line: #d9dee6; --back: #ffffff;
  --card: #f5f7fa; --accent: #2f6fb7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --muted: #9aa6b5; --line: #38414e;
  --back: #14181e; --card: #1c222b; --accent: #7fb2ec; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: 0.6rem; margin: 0; }
.tiles div { background: var(--card); border-radius: 6px; padding: 0.5rem 0.8rem; }
dt { color: var(--muted); font-size: 0.8rem; } dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
.figures { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; background: var(--card); border-radius: 6px; padding: 0.8rem; min-width: 0; }
figure.episode { margin-bottom: 0.8rem; }
figcaption { font-size: 0.85rem; color: var(--muted); margin-bottom: 0.4rem; overflow-wrap: anywhere; }
figcaption b { color: var(--ink); }
svg { display: block; } svg text { font-size: 12px; fill: var(--muted); }
.chart { width: 100%; height: auto; }
.chart rect, .chart circle, .spark path { fill: var(--accent); }
.stick { stroke: var(--accent); stroke-width: 6; opacity: 0.35; }
.band { fill: var(--accent); opacity: 0.22; }
.line { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.spark { width: 120px; height: 24px; }
.series { display: grid; grid-template-columns: 9rem 1fr 11rem; gap: 0.6rem; align-items: center;
  font-size: 0.8rem; color: var(--muted); }
.series span { overflow-wrap: anywhere; }
.trace { width: 100%; height: 40px; }
.strip { display: flex; flex-wrap: wrap; gap: 4px; font-size: 0.75rem; color: var(--muted); }
.strip span { text-align: center; } .strip img { display: block; image-rendering: pixelated; width: 96px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.6rem; text-align: left; vertical-align: middle;
  border-bottom: 1px solid var(--line); }
.columns th, .columns td { white-space: nowrap; } thead th { color: var(--muted); font-weight: 500; }
.columns { width: 100%; }
.number, .columns thead th.number { text-align: right; font-variant-numeric: tabular-nums; }
.pairs td { overflow-wrap: anywhere; } .pairs th { white-space: nowrap; color: var(--muted); font-weight: 500;
  vertical-align: top; }
pre { background: var(--card); border-radius: 6px; padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
@media (max-width: 40rem) { svg text { font-size: 15px; }
  .series { grid-template-columns: 1fr 1fr; } .series svg { grid-row: 2; grid-column: 1 / 3; }
  .series span:last-child { text-align: right; } .pairs th { white-space: normal; } }
"""
