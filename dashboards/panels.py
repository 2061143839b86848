"""The kinds of panels in Legato's dashboards, and the dashboard that contains them.

A panel has a title, a description (what it shows, and what to do), a unit and one SQL statement. The appearance of each kind is defined
here once, so that all dashboards look alike. The SQL of the panels is in `boards/`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import barchart, common, dashboard, heatmap, stat, table, text, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models import heatmap as heatmaps

from dashboards.cause_style import cells_by_cause, series_by_cause
from dashboards.scales import sentence, thresholds, words
from dashboards.sql_fragments import IN_RANGE, filters, with_chosen
from dashboards.target import DATASOURCE, TABLE, TIME_SERIES, Query

__all__ = ["Kit", "bars", "distribution", "heat", "lines", "note", "number", "options", "rows"]

_STREAM_LINK = "/d/legato-stream/stream?var-stream=${__value.raw}&${__url_time_range}"


def _plain(sql: str) -> str:
    return with_chosen(textwrap.dedent(sql).strip())


def _with_query(
    panel: Any, title: str, description: str, sql: str, form: int, size: tuple[int, int], unit: str = "", empty: str = ""
) -> Any:
    panel = panel.title(title).description(description).datasource(DATASOURCE).with_target(Query(_plain(sql), form))
    panel = panel.span(size[0]).height(size[1])
    panel = panel.no_value(empty) if empty else panel
    return panel.unit(unit) if unit else panel


def _with_units(panel: Any, units: Mapping[str, str]) -> Any:
    for name, unit in units.items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("unit", unit)])
    return panel


def number(title: str, description: str, sql: str, unit: str, scale: str = "", *, width: int = 4, height: int = 5, empty: str = "") -> Any:
    """One row of figures: the main figure in the first column, its ``n`` and others in the next ones.

    ``scale``: a name of ``scales.SCALES``, which colours the figure; the column ``state`` has the word. ``empty``: why there is no figure.
    """
    panel = _with_query(stat.Panel(), title, description, sql, TABLE, (width, height), unit, empty).thresholds(thresholds(scale))
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("/.*/"))
    panel = panel.text_mode(kinds.BigValueTextMode.VALUE_AND_NAME).orientation(kinds.VizOrientation.HORIZONTAL)
    panel = panel.color_mode(kinds.BigValueColorMode.VALUE).graph_mode(kinds.BigValueGraphMode.NONE)
    if scale:
        word = [shapes.DynamicConfigValue("unit", "string"), shapes.DynamicConfigValue("mappings", words(scale))]
        panel = panel.override_by_name("state", word)
    return panel.override_by_regexp(
        "/^(n( .*)?|of stalls|at gateways|at servers|stalled for 2 s or more|for 8 s or more)$/",
        [shapes.DynamicConfigValue("unit", "short"), _plain_color()],
    )


def _plain_color() -> shapes.DynamicConfigValue:
    return shapes.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "text"})


def lines(
    title: str,
    description: str,
    sql: str,
    unit: str,
    *,
    scale: str = "",
    units: Mapping[str, str] | None = None,
    width: int = 12,
    height: int = 8,
    points: bool = False,
    empty: str = "",
) -> Any:
    """Curves over time. Legato's page leaves out what has no data; Grafana joins the points, because its limit for a gap is a fixed time,
    and the interval of the points is not. Columns in ``units`` have a separate unit and axis.

    ``scale``: a name of ``scales.SCALES``; its limits are dashed lines, which the description explains.
    """
    if scale:
        description = f"{description} {sentence(scale, unit)}"
    panel = _with_query(timeseries.Panel(), title, description, sql, TIME_SERIES, (width, height), unit, empty)
    panel = panel.thresholds(thresholds(scale)).line_width(2).fill_opacity(5).interval("1m")
    panel = panel.legend(common.VizLegendOptions().show_legend(True).placement(kinds.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
    panel = panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    if scale:
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED))
    if points:
        panel = panel.draw_style(kinds.GraphDrawStyle.POINTS).point_size(4)
    for name, own in (units or {}).items():
        panel = panel.override_by_name(
            name, [shapes.DynamicConfigValue("unit", own), shapes.DynamicConfigValue("custom.axisPlacement", "right")]
        )
    return panel


def bars(
    title: str, description: str, sql: str, unit: str, *, width: int = 12, height: int = 8, by_cause: bool = False, empty: str = ""
) -> Any:
    """Stacked bars over time, one colour per label. ``by_cause``: the labels are causes, which have their own colours."""
    panel = lines(title, description, sql, unit, width=width, height=height, empty=empty)
    panel = panel.draw_style(kinds.GraphDrawStyle.BARS).fill_opacity(70).line_width(0)
    panel = series_by_cause(panel) if by_cause else panel
    return panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))


def distribution(
    title: str, description: str, sql: str, along: str, *, unit: str = "short", width: int = 12, height: int = 9, empty: str = ""
) -> Any:
    """A histogram: one group of bars per row, with the row's label in the string column ``along`` and the counts in the others.

    Grafana's bar chart draws rows at equal distances, so the statement returns a row for each bucket, also for empty ones.
    """
    panel = _with_query(barchart.Panel(), title, description, sql, TABLE, (width, height), unit, empty).thresholds(thresholds(""))
    panel = panel.x_field(along).x_tick_label_spacing(100).orientation(kinds.VizOrientation.VERTICAL)
    panel = panel.show_value(kinds.VisibilityMode.NEVER).group_width(0.95).bar_width(1).fill_opacity(70).line_width(0)
    panel = panel.legend(common.VizLegendOptions().show_legend(True).placement(kinds.LegendPlacement.BOTTOM).calcs(["sum"]))
    return panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI))


def rows(
    title: str,
    description: str,
    sql: str,
    units: Mapping[str, str] | None = None,
    *,
    width: int = 24,
    height: int = 9,
    scales: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    causes: Sequence[str] = (),
    empty: str = "",
) -> Any:
    """A table. A column named ``stream`` links to its stream. ``links``: URLs for other columns.

    ``scales``: colours of a column's cells, by a name of ``scales.SCALES``; the column ``state`` has the words.
    ``causes``: the columns that hold causes, which have their own colours.
    """
    panel = _with_query(table.Panel(), title, description, sql, TABLE, (width, height), "", empty)
    # The panel's own text for missing data explains an empty table; Grafana would show it in every cell without a value, too.
    panel = _with_units(panel.override_by_regexp("/.*/", [shapes.DynamicConfigValue("noValue", "–")]), units or {})
    panel = cells_by_cause(panel.thresholds(thresholds("")).filterable(True).cell_height(kinds.TableCellHeight.SM), causes)
    colored = shapes.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    for name, scale in (scales or {}).items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("thresholds", thresholds(scale).build()), colored])
        panel = panel.override_by_name("state", [shapes.DynamicConfigValue("mappings", words(scale)), colored])
    runbooks = dict.fromkeys(causes, "/d/legato-runbook/runbook")
    for name, url in {"stream": _STREAM_LINK, **runbooks, **(links or {})}.items():
        panel = panel.override_by_name(name, [shapes.DynamicConfigValue("links", [{"title": f"open this {name}", "url": url}])])
    return panel


def heat(title: str, description: str, sql: str, unit: str, *, counts: str, width: int = 24, height: int = 10, empty: str = "") -> Any:
    """A heatmap of counts: a time column, the string column ``le`` with each bucket's upper bound, the count in the column ``Value``.

    ``counts``: the name of the counts in the tooltip. Grafana names a series by the value's column and the label, except if the column is
    named ``Value``. Only a name that is a number is shown with the axis' unit.
    """
    panel = _with_query(heatmap.Panel(), title, description, sql, TIME_SERIES, (width, height), empty=empty).interval("1m")
    panel = panel.calculate(False).rows_frame(heatmap.RowsHeatmapOptions().layout(kinds.HeatmapCellLayout.LE).value(counts))
    panel = panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(kinds.AxisPlacement.LEFT))
    panel = panel.cell_values(heatmap.CellValues().unit("short").decimals(0)).show_legend()
    panel = panel.filter_values(heatmap.FilterValueRange().le(1e-9)).cell_gap(1)
    color = heatmap.HeatmapColorOptions().mode(heatmaps.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)
    return panel.color(color.scale(heatmaps.HeatmapColorScale.EXPONENTIAL).exponent(0.4)).tooltip(
        heatmap.HeatmapTooltip().mode(kinds.TooltipDisplayMode.SINGLE).y_histogram(True).show_color_scale(True)
    )


def note(title: str, content: str, *, width: int = 24, height: int = 4) -> Any:
    """A panel with text."""
    return text.Panel().title(title).content(content).mode("markdown").span(width).height(height)  # type: ignore[arg-type]


_NAMES = """SELECT DISTINCT if({column} = '', '(none)', {column}::String) AS name FROM {table}
WHERE {within} ORDER BY name LIMIT 1000"""


def _choice(name: str, column: str, source: str, first: str) -> dashboard.QueryVariable:
    """A variable with the initial value ``first``, or All. If the store has no such value, Grafana falls back to All.

    ``source``: a table with the column ``minute``, or a subquery, which may use the variables before this one.
    """
    sql = _plain(_NAMES.format(column=column, table=source, within=IN_RANGE))
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


def options(name: str, label: str, description: str, sql: str, first: str, *, multi: bool = False) -> Any:
    """A variable without All: its values are the rows of a statement, in that order, and ``first`` is the initial one."""
    current = shapes.VariableOption(selected=True, text=[first] if multi else first, value=[first] if multi else first)
    built = dashboard.QueryVariable(name).label(label).description(description).definition(_plain(sql)).datasource(DATASOURCE)
    built = built.query({"rawSql": _plain(sql), "editorType": "sql", "refId": name}).refresh(shapes.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return built.multi(multi).include_all(False).current(current).sort(shapes.VariableSort.DISABLED)


def _setting(name: str, label: str, description: str, value: str) -> dashboard.TextBoxVariable:
    option = shapes.VariableOption(selected=True, text=value, value=value)
    return dashboard.TextBoxVariable(name).label(label).description(description).default_value(value).current(option).options([option])


class Kit:
    """A dashboard to which panels are added in order.

    ``variables``: name → column of ``source``, or of the source in ``sources``; ``settings``: text boxes. ``others``: variables made by
    ``options``. ``first``: initial values of variables other than All. ``empty``: why a panel without another explanation has no data.
    """

    def __init__(
        self,
        uid: str,
        title: str,
        description: str,
        *,
        variables: Mapping[str, str],
        empty: str,
        source: str = "stream_minutes",
        sources: Mapping[str, str] | None = None,
        first: Mapping[str, str] | None = None,
        settings: Sequence[tuple[str, str, str, str]] = (),
        others: Sequence[Any] = (),
        since: str = "now-6h",
        refresh: str = "1m",
        annotated: bool = True,
    ) -> None:
        self.uid = uid
        built = dashboard.Dashboard(title).uid(uid).description(description).tags(["legato"]).timezone("browser").editable()
        built = built.time(since, "now").refresh(refresh).tooltip(shapes.DashboardCursorSync.CROSSHAIR).version(1)
        menu = dashboard.DashboardLink("Legato").type(shapes.DashboardLinkType.DASHBOARDS).tags(["legato"]).as_dropdown(True)
        built = built.link(menu.keep_time(True).include_vars(True))
        for name, column in variables.items():
            built = built.with_variable(_choice(name, column, (sources or {}).get(name, source), (first or {}).get(name, "")))
        for other in others:
            built = built.with_variable(other)
        for setting in settings:
            built = built.with_variable(_setting(*setting))
        if annotated:
            for annotation in _annotations():
                built = built.annotation(annotation)
        self._built, self._numbers, self._empty = built, 0, empty

    def add(self, *panels: Any) -> Kit:
        """Add panels from left to right, then in the next row. Each gets the next number."""
        for panel in panels:
            self._built = self._built.with_panel(self._numbered(panel))
        return self

    def add_row(self, title: str, *panels: Any, folded: bool = True) -> Kit:
        """Add a heading with panels below it. ``folded``: they are hidden, and not queried, until a user opens the row."""
        row = dashboard.Row(title).id(self._number())
        if not folded:
            self._built = self._built.with_row(row.collapsed(False))
            return self.add(*panels)
        for panel in panels:
            row = row.with_panel(self._numbered(panel))
        self._built = self._built.with_row(row)
        return self

    def _numbered(self, panel: Any) -> Any:
        config = panel.build().field_config
        if config is not None and config.defaults.no_value is None:
            panel = panel.no_value(self._empty)
        return panel.id(self._number())

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def build(self) -> shapes.Dashboard:
        """Return the dashboard in Grafana's classic model."""
        return self._built.build()


# The first minute of each release, unless the release was present at the beginning of the range.
_RELEASES = f"""
SELECT min(minute) AS time, concat('release ', service_name, ' ', service_version) AS title, 'its first stream' AS text
FROM stream_minutes FINAL
WHERE {IN_RANGE} AND streams > 0 AND service_version != ''
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
WHERE {IN_RANGE} AND judged > 0
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
