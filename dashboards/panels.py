"""The kinds of panels in Legato's dashboards, and the dashboard that contains them.

A panel has a title, a description (what it shows, and what to do), a unit and one SQL statement. The appearance of each kind is defined
here once, so that all dashboards look alike. The SQL of the panels is in `boards/`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, table, text, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models import heatmap as heatmaps

from dashboards.cause_style import cells_by_cause, series_by_cause
from dashboards.sql_fragments import filters
from dashboards.target import DATASOURCE, TABLE, TIME_SERIES, Query
from legato_ingest.definitions import SLO_FIRST_OUTPUT_MS, SLO_GAP_MS, STALL_MS

__all__ = ["LIMITS", "Kit", "bars", "heat", "lines", "note", "number", "rows"]

Thresholds = Sequence[tuple[float | None, str]]
# Thresholds by name: from which value on a figure has which colour.
LIMITS: dict[str, Thresholds] = {
    "goodput": ((None, "red"), (0.95, "orange"), (0.99, "green")),
    "gap_s": ((None, "green"), (STALL_MS / 1000, "orange"), (SLO_GAP_MS / 1000, "red")),
    "first_s": ((None, "green"), (SLO_FIRST_OUTPUT_MS / 2000, "orange"), (SLO_FIRST_OUTPUT_MS / 1000, "red")),
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


def _with_query(panel: Any, title: str, description: str, sql: str, form: int, width: int, height: int, unit: str = "") -> Any:
    panel = panel.title(title).description(description).datasource(DATASOURCE).with_target(Query(_plain(sql), form))
    panel = panel.span(width).height(height).no_value("no data")
    return panel.unit(unit) if unit else panel


def _with_units(panel: Any, units: Mapping[str, str]) -> Any:
    for name, unit in units.items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("unit", unit)])
    return panel


def number(title: str, description: str, sql: str, unit: str, limits: str = "none", width: int = 4) -> Any:
    """One row of figures: the main figure in the first column, its ``n`` and others in the next ones."""
    panel = _with_query(stat.Panel(), title, description, sql, TABLE, width, 5, unit).thresholds(_thresholds(limits))
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
    """Curves over time; a gap in the data is a gap in the curve. Columns in ``units`` have a separate unit and axis."""
    panel = _with_query(timeseries.Panel(), title, description, sql, TIME_SERIES, width, height, unit)
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


def bars(title: str, description: str, sql: str, unit: str, *, width: int = 12, height: int = 8, by_cause: bool = False) -> Any:
    """Stacked bars over time, one colour per label. ``by_cause``: the labels are causes, which have their own colours."""
    panel = lines(title, description, sql, unit, width=width, height=height)
    panel = panel.draw_style(kinds.GraphDrawStyle.BARS).fill_opacity(70).line_width(0)
    panel = series_by_cause(panel) if by_cause else panel
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
    causes: Sequence[str] = (),
) -> Any:
    """A table. A column named ``stream`` links to its stream. ``links``: URLs for other columns. ``limits``: colours of cells.

    ``causes``: the columns that hold causes, which have their own colours.
    """
    panel = _with_units(_with_query(table.Panel(), title, description, sql, TABLE, width, height), units or {})
    panel = cells_by_cause(panel.thresholds(_thresholds("none")).filterable(True).cell_height(kinds.TableCellHeight.SM), causes)
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
    panel = _with_query(heatmap.Panel(), title, description, sql, TIME_SERIES, width, height).interval("1m")
    panel = panel.calculate(False).rows_frame(heatmap.RowsHeatmapOptions().layout(kinds.HeatmapCellLayout.LE).value("gaps"))
    panel = panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(kinds.AxisPlacement.LEFT))
    panel = panel.filter_values(heatmap.FilterValueRange().le(1e-9)).cell_gap(1)
    color = heatmap.HeatmapColorOptions().mode(heatmaps.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)
    return panel.color(color.scale(heatmaps.HeatmapColorScale.EXPONENTIAL).exponent(0.4)).tooltip(
        heatmap.HeatmapTooltip().mode(kinds.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True)
    )


def note(title: str, content: str, *, width: int = 24, height: int = 4) -> Any:
    """A panel with text."""
    return text.Panel().title(title).content(content).mode("markdown").span(width).height(height)  # type: ignore[arg-type]


_NAMES = """SELECT DISTINCT if({column} = '', '(none)', {column}::String) AS name FROM {table}
WHERE $__timeFilter(minute) ORDER BY name LIMIT 1000"""


def _choice(name: str, column: str, source: str, first: str) -> dashboard.QueryVariable:
    """A variable with the initial value ``first``, or All. If the store has no such value, Grafana falls back to All."""
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

    ``first``: initial values of variables other than All.
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
        built = dashboard.Dashboard(title).uid(uid).description(description).tags(["legato"]).timezone("browser").readonly()
        built = built.time(since, "now").refresh(refresh).tooltip(shapes.DashboardCursorSync.CROSSHAIR).version(1)
        menu = dashboard.DashboardLink("Legato").type(shapes.DashboardLinkType.DASHBOARDS).tags(["legato"]).as_dropdown(True)
        built = built.link(menu.keep_time(True).include_vars(True))
        for name, column in variables.items():
            built = built.with_variable(_choice(name, column, source, (first or {}).get(name, "")))
        for name, label, sentence, value in settings:
            built = built.with_variable(_setting(name, label, sentence, value))
        if annotated:
            for annotation in _annotations():
                built = built.annotation(annotation)
        self._built, self._numbers = built, 0

    def add(self, *panels: Any) -> Kit:
        """Add panels from left to right, then in the next row. Each gets the next number."""
        for panel in panels:
            self._numbers += 1
            self._built = self._built.with_panel(panel.id(self._numbers))
        return self

    def build(self) -> shapes.Dashboard:
        """Return the dashboard in Grafana's classic model."""
        return self._built.build()


# The first minute of each release, unless the release was present at the beginning of the range.
_RELEASES = f"""
SELECT min(minute) AS time, concat('release ', service_name, ' ', service_version) AS title, 'its first stream' AS text
FROM stream_minutes FINAL
WHERE $__timeFilter(minute) AND streams > 0 AND service_version != ''
    AND {filters()}
GROUP BY service_name, service_version
HAVING time > addMinutes($__fromTime, 2)
ORDER BY time
LIMIT 100"""
# Intervals of five minutes in which 20 % or more of a service's streams were bad, and at least three.
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
    built = []
    for name, color, sql in (("Releases", "blue", _RELEASES), ("SLO breaches", "red", _BREACHES)):
        annotation = dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(color)
        built.append(annotation.target(Query(_plain(sql), TABLE)))
    return built
