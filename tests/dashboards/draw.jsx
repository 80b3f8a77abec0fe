// Runs in the browser: `window.draw` draws a dashboard and the answers to its queries with Grafana's own libraries, and
// resolves to which panels are empty. Transformations, field configuration, units, thresholds and mappings are those of
// @grafana/data; panels are components of @grafana/ui, but for the state timeline, which Grafana does not publish.

import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, EventBusSrv, FieldConfigOptionsRegistry, FieldType,
  formattedValueToString, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues, LoadingState,
  standardTransformers, standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame, VizOrientation,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { BarGauge, BigValue, GlobalStyles, Icon, PanelChrome, PanelContextProvider, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

const CELL = 30;
const GAP = 8;
const WIDTH = 1600;
const theme = createTheme({ colors: { mode: 'dark' } });
const context = { eventBus: new EventBusSrv(), eventsScope: 'global', canExecuteActions: () => false };
const verbatim = (text) => text;

standardTransformersRegistry.setInit(() => [...new Set(Object.values(standardTransformers))].map((transformation) => ({
  id: transformation.id, name: transformation.name, transformation, editor: () => null,
})));

// As Grafana's Prometheus data source makes them.
function frames(panel, answers, step) {
  const targets = panel.targets.map((target, number) => ({ target, answer: answers[number] }));
  const tables = targets.filter(({ target, answer }) => target.format === 'table' && answer.length > 0).length;
  return targets.flatMap(({ target, answer: series }) => {
    if (series.length === 0) return [];
    if (target.format === 'table') return [asTable(target.refId, series, tables > 1)];
    return series.map(({ metric, values }) => toDataFrame({
      refId: target.refId,
      fields: [
        // With the interval, Grafana leaves a gap where a point is missing.
        { name: 'Time', type: FieldType.time, values: values.map(([time]) => time * 1000), config: { interval: step } },
        {
          name: 'Value', type: FieldType.number, labels: metric, values: values.map(([, value]) => finite(Number(value))),
          config: { displayNameFromDS: legend(target.legendFormat, metric) },
        },
      ],
    }));
  });
}

// As Grafana's time series leave out what is no number, such as a quantile of nothing.
const finite = (value) => (Number.isFinite(value) ? value : null);

function asTable(refId, series, oneOfSeveral) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const rows = series.flatMap(({ metric, values }) => values.map(([time, value]) => ({ metric, time, value })));
  rows.sort((one, other) => one.time - other.time);
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: rows.map(({ time }) => time * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: rows.map(({ metric }) => metric[label] ?? '') })),
      { name: oneOfSeveral ? `Value #${refId}` : 'Value', type: FieldType.number, values: rows.map(({ value }) => Number(value)) },
    ],
  });
}

const legend = (format, metric) => format.replace(/{{\s*(.+?)\s*}}/g, (_, label) => metric[label] ?? '');

// Everything that a panel configures, applied as it is.
function registry({ defaults, overrides }) {
  const custom = new Set(Object.keys(defaults.custom ?? {}));
  for (const { id } of overrides.flatMap((override) => override.properties)) if (id.startsWith('custom.')) custom.add(id.slice(7));
  const item = (path, isCustom) => ({
    id: isCustom ? `custom.${path}` : path, path, isCustom, name: path, process: (value) => value, shouldApply: () => true, settings: {},
  });
  const standard = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'color', 'links'];
  return new FieldConfigOptionsRegistry(() => [...standard.map((path) => item(path, false)), ...[...custom].map((path) => item(path, true))]);
}

async function prepare(panel, answers, step) {
  const transformed = await lastValueFrom(transformDataFrame(panel.transformations ?? [], frames(panel, answers, step)));
  cacheFieldDisplayNames(transformed);
  const data = applyFieldOverrides({
    data: transformed, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry(panel.fieldConfig), replaceVariables: verbatim,
    theme, timeZone: 'utc',
  });
  cacheFieldDisplayNames(data);
  return data;
}

function Values({ panel, data, width, height, orientation, render }) {
  const getValues = () => getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: verbatim, theme, data, timeZone: 'utc',
  });
  return (
    <VizRepeater getValues={getValues} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={render} width={width} height={height} source={data} renderCounter={1}
      orientation={orientation} itemSpacing={10} autoGrid={false} minVizHeight={panel.options.minVizHeight} maxVizHeight={panel.options.maxVizHeight} />
  );
}

function Stat(props) {
  const { colorMode, graphMode, textMode } = props.panel.options;
  const render = ({ value, width, height, count }) => (
    <BigValue value={value.display} count={count} width={width} height={height} theme={theme} colorMode={colorMode} graphMode={graphMode}
      justifyMode="auto" textMode={textMode} />
  );
  return <Values {...props} orientation={VizOrientation.Auto} render={render} />;
}

function Bars(props) {
  const { displayMode, showUnfilled } = props.panel.options;
  const render = ({ value, width, height, orientation, alignmentFactors }) => (
    <BarGauge alignmentFactors={alignmentFactors} value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} width={width}
      height={height} orientation={orientation} displayMode={displayMode} showUnfilled={showUnfilled} theme={theme} itemSpacing={10}
      lcdCellWidth={8} text={props.panel.options.text} valueDisplayMode={props.panel.options.valueMode}
      namePlacement={props.panel.options.namePlacement} />
  );
  return <Values {...props} orientation={VizOrientation.Horizontal} render={render} />;
}

function Curves({ panel, data, range, width, height, annotations }) {
  return (
    <TimeSeries frames={data} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height} legend={panel.options.legend}
      options={panel.options} replaceVariables={verbatim}>
      {(config) => { config.addHook('draw', (plot) => mark(plot, annotations)); return null; }}
    </TimeSeries>
  );
}

function mark(plot, times) {
  const { ctx, bbox } = plot;
  ctx.save();
  Object.assign(ctx, { strokeStyle: theme.visualization.getColorByName('red'), lineWidth: 1 });
  ctx.setLineDash([4, 3]);
  for (const time of times) {
    const x = plot.valToPos(time, 'x', true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

// Grafana's state timeline is not published as a component. Names, texts and colours are Grafana's, the drawing is ours.
function Timeline({ panel, data, range, width, height }) {
  const rows = data.flatMap((frame) => {
    const time = frame.fields.find(({ type }) => type === FieldType.time);
    return frame.fields.filter((field) => field !== time).map((field) => ({
      name: getFieldDisplayName(field, frame, data), spans: spans(time.values, field, range.to.valueOf(), range.step),
    }));
  });
  const [axis, left] = [22, Math.min(260, 16 + 6.7 * Math.max(...rows.map(({ name }) => name.length)))];
  const [from, to] = [range.from.valueOf(), range.to.valueOf()];
  const x = (time) => left + ((time - from) / (to - from)) * (width - left);
  const line = (height - axis) / rows.length;
  const ticks = Array.from({ length: 8 }, (_, number) => from + ((to - from) * (number + 0.5)) / 8);
  const text = { fill: theme.colors.text.primary, fontSize: 12, dominantBaseline: 'middle' };
  return (
    <svg width={width} height={height} style={{ overflow: 'hidden' }}>
      {rows.map(({ name, spans: all }, row) => (
        <g key={name + row} transform={`translate(0 ${row * line})`}>
          <text x={left - 8} y={line / 2} textAnchor="end" {...text}>{name}</text>
          {all.map(({ start, end, color, label }) => {
            const [one, wide] = [Math.max(left, x(start)), x(end) - Math.max(left, x(start))];
            const gap = (line * (1 - (panel.options.rowHeight ?? 0.9))) / 2;
            return (
              <g key={start}>
                <rect x={one} y={gap} width={Math.max(1, wide)} height={line - 2 * gap} fill={color} stroke={color}
                  fillOpacity={(panel.fieldConfig.defaults.custom?.fillOpacity ?? 70) / 100} />
                {wide > 8 + 6.7 * label.length && <text x={one + 4} y={line / 2} {...text}>{label}</text>}
              </g>
            );
          })}
        </g>
      ))}
      {ticks.map((time) => (
        <text key={time} x={x(time)} y={height - 8} textAnchor="middle" {...text}>{dateTime(time).utc().format('HH:mm')}</text>
      ))}
    </svg>
  );
}

// Equal neighbours become one; a point that is missing ends a span.
function spans(times, field, end, step) {
  const found = [];
  times.forEach((time, index) => {
    const value = field.values[index];
    const last = found.at(-1);
    if (value === null || value === undefined || value === '') return;
    if (last && last.value === value && time - last.end < step / 2) last.end = Math.min(end, time + step);
    else {
      const display = field.display(value);
      found.push({ value, start: time, end: Math.min(end, time + step), color: display.color, label: formattedValueToString(display) });
    }
  });
  return found;
}

function Table({ panel, data, range, width, height }) {
  return (
    <TableNG data={data[0]} width={width} height={height} noHeader={!panel.options.showHeader} cellHeight={panel.options.cellHeight}
      initialSortBy={panel.options.sortBy} timeRange={range} enableVirtualization={false} structureRev={1} transparent />
  );
}

const KINDS = { stat: Stat, bargauge: Bars, timeseries: Curves, 'state-timeline': Timeline, table: Table };

const isEmpty = (data) => !data.some((frame) => frame.length > 0 && frame.fields.some(({ type }) => type !== FieldType.time));

function Panel({ panel, data, range, annotations }) {
  const { x, y, w, h } = panel.gridPos;
  const cell = (WIDTH - GAP) / 24;
  const style = { position: 'absolute', left: GAP + x * cell, top: GAP + y * (CELL + GAP) };
  const size = { width: w * cell - GAP, height: h * (CELL + GAP) - GAP };
  if (panel.type === 'row') {
    return (
      <h2 style={{ ...style, height: CELL, fontSize: 16, margin: 0, display: 'flex', alignItems: 'center', gap: 6 }}>
        <Icon name={panel.collapsed ? 'angle-right' : 'angle-down'} />{panel.title}
        {panel.collapsed && <small style={{ color: theme.colors.text.secondary }}>({panel.panels.length} panels)</small>}
      </h2>
    );
  }
  const Kind = KINDS[panel.type];
  return (
    <div style={style}>
      <PanelChrome {...size} title={panel.title} description={panel.description} padding={panel.type === 'table' ? 'none' : 'md'}
        loadingState={LoadingState.Done}>
        {(width, height) => (isEmpty(data)
          ? <div style={{ display: 'grid', placeItems: 'center', width, height, color: theme.colors.text.secondary }}>
            {panel.fieldConfig.defaults.noValue ?? 'No data'}</div>
          : <Kind panel={panel} data={data} range={range} width={width} height={height} annotations={annotations} />)}
      </PanelChrome>
    </div>
  );
}

function Head({ title, variables }) {
  const chip = { background: theme.colors.background.secondary, border: `1px solid ${theme.colors.border.medium}`, padding: '3px 8px' };
  return (
    <header style={{ display: 'flex', gap: 8, alignItems: 'center', padding: GAP, height: 40 }}>
      <h1 style={{ fontSize: 18, margin: '0 16px 0 0' }}>{title}</h1>
      {variables.map(({ label, value }) => <span key={label} style={chip}>{label} <b style={{ color: theme.colors.text.link }}>{value}</b></span>)}
    </header>
  );
}

window.draw = async ({ dashboard: { title, panels }, answers, variables, from, to, step, annotations }) => {
  await initPluginTranslations('podmeter');
  const root = createRoot(document.getElementById('root'));
  // First the fonts: Grafana measures texts before it lays them out.
  root.render(<ThemeContext.Provider value={theme}><GlobalStyles isExtensionSidebarOpen={false} /></ThemeContext.Provider>);
  await pause(200);
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 14px Inter`)));
  const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) }, step };
  const ready = await Promise.all(panels.map((panel) => (panel.targets ? prepare(panel, answers[panel.id], step) : [])));
  const bottom = Math.max(...panels.map(({ gridPos: { y, h } }) => y + h));
  root.render(
    <ThemeContext.Provider value={theme}>
      <PanelContextProvider value={context}>
        <GlobalStyles isExtensionSidebarOpen={false} />
        <Head title={title} variables={variables} />
        <main style={{ position: 'relative', width: WIDTH, height: bottom * (CELL + GAP) + GAP }}>
          {panels.map((panel, number) => <Panel key={panel.id} panel={panel} data={ready[number]} range={range} annotations={annotations} />)}
        </main>
      </PanelContextProvider>
    </ThemeContext.Provider>,
  );
  await settled();
  const drawn = panels.map((panel, number) => ({ panel, data: ready[number] })).filter(({ panel }) => panel.targets);
  const report = ({ panel, data }) => ({ title: panel.title, empty: isEmpty(data), text: panel.fieldConfig.defaults.noValue });
  return { panels: drawn.map(report), width: WIDTH, height: document.documentElement.scrollHeight };
};

// Icons are loaded one by one.
async function settled() {
  for (let [same, last] = [0, 0]; same < 4; same += 1) {
    await pause(500);
    const now = document.body.innerHTML.length;
    if (now !== last) [same, last] = [-1, now];
  }
}

const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
