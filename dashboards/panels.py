"""The kinds of panels that Legato's dashboards are made of, and the dashboard around them.

One idea: a panel is a title, a sentence on what it means and what to do, a unit and one statement; how each kind looks is said here, once,
so all dashboards look alike. It holds no SQL of a panel.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, table, text, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models import heatmap as heatmaps

from dashboards.sql_fragments import filters
from dashboards.target import DATASOURCE, TABLE, TIME_SERIES, Query

__all__ = ["LIMITS", "Kit", "bars", "heat", "lines", "note", "number", "rows"]

Thresholds = Sequence[tuple[float | None, str]]
# Where a figure of the streams turns from good to bad.
LIMITS: dict[str, Thresholds] = {
    "goodput": ((None, "red"), (0.95, "orange"), (0.99, "green")),
    "gap_s": ((None, "green"), (0.25, "orange"), (0.4, "red")),
    "first_s": ((None, "green"), (1.0, "orange"), (2.0, "red")),
    "share": ((None, "green"), (0.01, "orange"), (0.05, "red")),
    "jitter": ((None, "green"), (5.0, "orange"), (10.0, "red")),
    "none": ((None, "blue"),),
    "any": ((None, "green"), (1e-9, "red")),
}
_STREAM_LINK = "/d/legato-stream/stream?var-stream=${__value.raw}"


def _thresholds(name: str) -> dashboard.ThresholdsConfig:
    steps = [shapes.Threshold(value=value, color=color) for value, color in LIMITS[name]]
    return dashboard.ThresholdsConfig().mode(shapes.ThresholdsMode.ABSOLUTE).steps(steps)


def _plain(sql: str) -> str:
    return textwrap.dedent(sql).strip()


def _dressed(panel: Any, title: str, description: str, sql: str, form: int, width: int, height: int, unit: str = "") -> Any:
    panel = panel.title(title).description(description).datasource(DATASOURCE).with_target(Query(_plain(sql), form))
    panel = panel.span(width).height(height).no_value("no data")
    return panel.unit(unit) if unit else panel


def _with_units(panel: Any, units: Mapping[str, str]) -> Any:
    for name, unit in units.items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("unit", unit)])
    return panel


def number(title: str, description: str, sql: str, unit: str, limits: str = "none", width: int = 4) -> Any:
    """One row: the figure in the first column, its ``n`` (and whatever else stands beside it) in the others."""
    panel = _dressed(stat.Panel(), title, description, sql, TABLE, width, 5, unit).thresholds(_thresholds(limits))
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("/.*/"))
    panel = panel.text_mode(kinds.BigValueTextMode.VALUE_AND_NAME).orientation(kinds.VizOrientation.HORIZONTAL)
    panel = panel.color_mode(kinds.BigValueColorMode.VALUE).graph_mode(kinds.BigValueGraphMode.NONE)
    return panel.override_by_regexp("/^(n( .*)?|of client stalls)$/", [shapes.DynamicConfigValue("unit", "short"), _plain_color()])


def _plain_color() -> shapes.DynamicConfigValue:
    return shapes.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "text"})


def lines(
    title: str,
    description: str,
    sql: str,
    unit: str,
    *,
    limits: str = "none",
    units: Mapping[str, str] | None = None,
    width: int = 12,
    height: int = 8,
    points: bool = False,
) -> Any:
    """Curves over time; a hole in the data is a hole in the curve. Columns in ``units`` have a unit, and an axis, of their own."""
    panel = _dressed(timeseries.Panel(), title, description, sql, TIME_SERIES, width, height, unit)
    panel = panel.thresholds(_thresholds(limits)).line_width(2).fill_opacity(5).interval("1m")
    panel = panel.legend(common.VizLegendOptions().show_legend(True).placement(kinds.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
    panel = panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    if limits != "none":
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED))
    if points:
        panel = panel.draw_style(kinds.GraphDrawStyle.POINTS).point_size(4)
    for name, own in (units or {}).items():
        panel = panel.override_by_name(
            name, [shapes.DynamicConfigValue("unit", own), shapes.DynamicConfigValue("custom.axisPlacement", "right")]
        )
    return panel


def bars(title: str, description: str, sql: str, unit: str, *, width: int = 12, height: int = 8) -> Any:
    """Stacked bars over time, one colour a label."""
    panel = lines(title, description, sql, unit, width=width, height=height)
    panel = panel.draw_style(kinds.GraphDrawStyle.BARS).fill_opacity(70).line_width(0)
    return panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))


def rows(
    title: str,
    description: str,
    sql: str,
    units: Mapping[str, str] | None = None,
    *,
    width: int = 24,
    height: int = 9,
    limits: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> Any:
    """A table. A column named ``stream`` links to its stream; ``links`` has other columns' URLs; ``limits`` colours cells."""
    panel = _with_units(_dressed(table.Panel(), title, description, sql, TABLE, width, height), units or {})
    panel = panel.thresholds(_thresholds("none")).filterable(True).cell_height(kinds.TableCellHeight.SM)
    for name, limit in (limits or {}).items():
        steps = [{"value": value, "color": color} for value, color in LIMITS[limit]]
        panel = panel.override_by_name(
            name,
            [
                shapes.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}),
                shapes.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
            ],
        )
    for name, url in {"stream": _STREAM_LINK, **(links or {})}.items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("links", [{"title": f"open this {name}", "url": url}])])
    return panel


def heat(title: str, description: str, sql: str, unit: str, *, width: int = 24, height: int = 10) -> Any:
    """A heatmap of counts: a time column, a string column with each bucket's upper bound, the count."""
    panel = _dressed(heatmap.Panel(), title, description, sql, TIME_SERIES, width, height).interval("1m")
    panel = panel.calculate(False).rows_frame(heatmap.RowsHeatmapOptions().layout(kinds.HeatmapCellLayout.LE).value("gaps"))
    panel = panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(kinds.AxisPlacement.LEFT))
    panel = panel.filter_values(heatmap.FilterValueRange().le(1e-9)).cell_gap(1)
    color = heatmap.HeatmapColorOptions().mode(heatmaps.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)
    return panel.color(color.scale(heatmaps.HeatmapColorScale.EXPONENTIAL).exponent(0.4)).tooltip(
        heatmap.HeatmapTooltip().mode(kinds.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True)
    )


def note(title: str, words: str, *, width: int = 24, height: int = 4) -> Any:
    """A text."""
    return text.Panel().title(title).content(words).mode("markdown").span(width).height(height)  # type: ignore[arg-type]


_NAMES = """SELECT DISTINCT if({column} = '', '(none)', {column}::String) AS name FROM {table}
WHERE $__timeFilter(minute) ORDER BY name LIMIT 1000"""


def _choice(name: str, column: str, source: str, first: str) -> dashboard.QueryVariable:
    """A variable that stands at ``first``, or at All. Where a store has no such value Grafana falls back to all."""
    sql = _NAMES.format(column=column, table=source)
    current = shapes.VariableOption(selected=True, text=[first or "All"], value=[first or "$__all"])
    return (
        dashboard.QueryVariable(name)
        .query({"rawSql": sql, "editorType": "sql", "refId": name})
        .definition(sql)
        .datasource(DATASOURCE)
        .refresh(shapes.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .current(current)
        .sort(shapes.VariableSort.ALPHABETICAL_ASC)
    )


def _setting(name: str, label: str, description: str, value: str) -> dashboard.TextBoxVariable:
    option = shapes.VariableOption(selected=True, text=value, value=value)
    return dashboard.TextBoxVariable(name).label(label).description(description).default_value(value).current(option).options([option])


class Kit:
    """A dashboard to which panels are added in order. ``variables``: name → column of ``source``; ``settings``: text boxes.

    ``first``: what a variable stands at in the beginning, when that is not All.
    """

    def __init__(
        self,
        uid: str,
        title: str,
        description: str,
        *,
        variables: Mapping[str, str],
        source: str = "stream_minutes",
        first: Mapping[str, str] | None = None,
        settings: Sequence[tuple[str, str, str, str]] = (),
        since: str = "now-6h",
        refresh: str = "1m",
        annotated: bool = True,
    ) -> None:
        self.uid = uid
        made = dashboard.Dashboard(title).uid(uid).description(description).tags(["legato"]).timezone("browser").readonly()
        made = made.time(since, "now").refresh(refresh).tooltip(shapes.DashboardCursorSync.CROSSHAIR).version(1)
        menu = dashboard.DashboardLink("Legato").type(shapes.DashboardLinkType.DASHBOARDS).tags(["legato"]).as_dropdown(True)
        made = made.link(menu.keep_time(True).include_vars(True))
        for name, column in variables.items():
            made = made.with_variable(_choice(name, column, source, (first or {}).get(name, "")))
        for name, label, sentence, value in settings:
            made = made.with_variable(_setting(name, label, sentence, value))
        if annotated:
            for annotation in _annotations():
                made = made.annotation(annotation)
        self._made, self._numbers = made, 0

    def add(self, *panels: Any) -> Kit:
        """Panels from left to right, then down; each gets the next number."""
        for panel in panels:
            self._numbers += 1
            self._made = self._made.with_panel(panel.id(self._numbers))
        return self

    def build(self) -> shapes.Dashboard:
        """The dashboard as Grafana's classic model."""
        return self._made.build()


# The first minute of a release, where it is in the range: what was there from the beginning is no news.
_RELEASES = f"""
SELECT min(minute) AS time, concat('release ', service_name, ' ', service_version) AS title, 'its first stream' AS text
FROM stream_minutes FINAL
WHERE $__timeFilter(minute) AND streams > 0 AND service_version != ''
    AND {filters()}
GROUP BY service_name, service_version
HAVING time > addMinutes($__fromTime, 2)
ORDER BY time
LIMIT 100"""
# Five minutes in which a fifth of the streams of a service or more were not good.
_BREACHES = f"""
SELECT
    toStartOfFiveMinutes(minute) AS time, addMinutes(time, 5) AS timeEnd,
    concat('goodput ', service_name, ' ', vantage) AS title,
    concat(toString(round(100 * sum(good) / sum(judged), 1)), ' % of ', toString(sum(judged)), ' streams') AS text
FROM stream_minutes FINAL
WHERE $__timeFilter(minute) AND judged > 0
    AND {filters()}
GROUP BY time, service_name, vantage
HAVING sum(judged) - sum(good) >= 3 AND sum(good) <= 0.8 * sum(judged)
ORDER BY time
LIMIT 200"""


def _annotations() -> list[Any]:
    made = []
    for name, color, sql in (("Releases", "blue", _RELEASES), ("SLO breaches", "red", _BREACHES)):
        annotation = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(color)
        made.append(annotation.target(Query(_plain(sql), TABLE)))
    return made
