// SPDX-License-Identifier: Apache-2.0
// Live bytes over the step, stacked, and below them the bytes that the plan moves at each boundary.

const TIMELINE_HEIGHT = 280, MOVES_HEIGHT = 130, AXIS_WIDTH = 76;
const TIER_COLOURS = {
	"fast": "--fast", "slow": "--slow", "chosen by the kernel": "--kernel", "not planned": "--unplanned",
};
const POWERS_OF_TWO = Array.from({ length: 52 }, (_, power) => 2 ** power);

const timelines = Object.fromEntries(page.timelines.map((line) => [line.group, line]));
let timelineGroup = page.plan ? "tier" : "kind";
let charts = [];
let pointedAt = null;

function seriesColour(name) {
	if (timelineGroup === "tier")
		return style(TIER_COLOURS[name]);
	return page.kinds.find(([kind]) => kind === name)[1];
}

// For each series, the sum of its values and of the values of all series below it. The top series
// comes first.
function stacked(line) {
	const sums = [];
	let below = new Float64Array(line.times_ms.length);
	for (const { bytes } of line.series) {
		const sum = below.map((value, at) => value + bytes[at]);
		sums.unshift(sum);
		below = sum;
	}
	return sums;
}

function drawPhases(chart) {
	const { ctx, bbox } = chart;
	const scale = devicePixelRatio;
	ctx.save();
	ctx.beginPath();
	ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
	ctx.clip();
	ctx.textBaseline = "top";
	ctx.font = `${11 * scale}px system-ui, sans-serif`;
	page.phases.forEach(([name, first, past], at) => {
		const left = chart.valToPos(page.begins_ms[first], "x", true);
		const right = chart.valToPos(page.begins_ms[past], "x", true);
		if (at % 2) {
			ctx.fillStyle = style("--shade");
			ctx.fillRect(left, bbox.top, right - left, bbox.height);
		}
		const begin = Math.max(left, bbox.left);
		if (chart === charts[0] && right - begin > ctx.measureText(name).width + 8 * scale) {
			ctx.fillStyle = style("--faint");
			ctx.fillText(name, begin + 4 * scale, bbox.top + 3 * scale);
		}
	});
	ctx.restore();
}

function drawBudget(chart) {
	if (timelineGroup !== "tier")
		return;
	const { ctx, bbox } = chart;
	const scale = devicePixelRatio;
	const height = chart.valToPos(page.plan.budget_bytes, "y", true);
	if (height < bbox.top)
		return;
	ctx.save();
	ctx.strokeStyle = ctx.fillStyle = style("--text");
	ctx.lineWidth = 1.5 * scale;
	ctx.setLineDash([5 * scale, 4 * scale]);
	ctx.beginPath();
	ctx.moveTo(bbox.left, height);
	ctx.lineTo(bbox.left + bbox.width, height);
	ctx.stroke();
	// A margin in the panel's colour separates the text from the coloured areas.
	const text = `budget ${bytesText(page.plan.budget_bytes)}`;
	const right = bbox.left + bbox.width - 4 * scale;
	ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
	ctx.textAlign = "right";
	ctx.setLineDash([]);
	ctx.lineWidth = 4 * scale;
	ctx.lineJoin = "round";
	ctx.strokeStyle = style("--panel");
	ctx.strokeText(text, right, height - 5 * scale);
	ctx.fillText(text, right, height - 5 * scale);
	ctx.restore();
}

function tickText(ms) {
	return page.begins_ms[stretchCount] >= 2000 ? `${+(ms / 1000).toFixed(4)} s` : `${+ms.toFixed(4)} ms`;
}

function axes(withTimes) {
	const stroke = style("--faint");
	const grid = { stroke: style("--grid"), width: 1 };
	return [
		{
			stroke, grid, ticks: { show: false }, size: withTimes ? 28 : 10,
			values: (_, splits) => splits.map((ms) => (withTimes ? tickText(ms) : "")),
			space: 90,
		},
		{
			stroke, grid, ticks: { show: false }, size: AXIS_WIDTH, incrs: POWERS_OF_TWO,
			values: (_, splits) => splits.map((value) => bytesText(Math.abs(value))), space: 34,
		},
	];
}

function options(width, height, series, withTimes, range, hooks) {
	return {
		width, height, series,
		padding: [6, 10, 0, 0],
		axes: axes(withTimes),
		legend: { show: false },
		scales: { x: { time: false }, y: { range } },
		cursor: {
			sync: { key: "step", scales: ["x", null] },
			drag: { x: true, y: false },
			points: { show: false },
			y: false,
		},
		hooks: { ...hooks, setCursor: [onCursor] },
	};
}

function onCursor(chart) {
	if (pointedAt === "map")
		return;
	const left = chart.cursor.left;
	if (left === undefined || left < 0) {
		showLegend(-1);
		tell("stretch", -1, "timeline");
	} else if (chart === charts[0]) {
		showLegend(chart.cursor.idx);
		tell("stretch", stretchAt(chart.posToVal(left, "x")), "timeline");
	}
}

function liveChart(width, withTimes) {
	const line = timelines[timelineGroup];
	const names = line.series.map(({ name }) => name).reverse();
	const series = names.map((label) => ({
		label, fill: seriesColour(label), width: 0,
		paths: uPlot.paths.stepped({ align: 1 }), points: { show: false },
	}));
	const most = Math.max(line.peak_bytes, timelineGroup === "tier" ? page.plan.budget_bytes : 0, 1);
	return new uPlot(
		options(width, TIMELINE_HEIGHT, [{}, ...series], withTimes, () => [0, most * 1.1],
			{ drawClear: [drawPhases], draw: [drawBudget] }),
		[line.times_ms, ...stacked(line)],
		byId("timeline"),
	);
}

function movesChart(width) {
	const { up_bytes, down_bytes, late_bytes } = page.plan;
	const values = (bytes, sign) => [...Array.from(bytes, (value) => (value ? sign * value : null)), null];
	const bar = (label, colour) => ({
		label, fill: style(colour), stroke: style(colour), width: 0, points: { show: false },
		paths: uPlot.paths.bars({ size: [0.8, 8, 2], align: 0 }),
	});
	const ups = up_bytes.reduce((most, value) => Math.max(most, value), 1);
	const downs = down_bytes.reduce((most, value) => Math.max(most, value), 1);
	return new uPlot(
		options(width, MOVES_HEIGHT,
			[{}, bar("up", "--up"), bar("down", "--down"), bar("late", "--late")],
			true, () => [-downs * 1.1, ups * 1.1], { drawClear: [drawPhases] }),
		[page.begins_ms, values(up_bytes, 1), values(down_bytes, -1), values(late_bytes, 1)],
		byId("moves"),
	);
}

function hasMoves() {
	return page.plan !== null && page.plan.count.some((count) => count > 0);
}

function drawCharts() {
	for (const chart of charts)
		chart.destroy();
	const width = byId("timeline").clientWidth;
	charts = [];
	charts.push(liveChart(width, !hasMoves()));
	if (hasMoves())
		charts.push(movesChart(width));
	showLegend(-1);
}

// Shows the values at an index of the timeline. Index -1: shows the largest value of each series.
function showLegend(index) {
	const line = timelines[timelineGroup];
	byId("timeline-legend").replaceChildren(...line.series.map(({ name, bytes, max_bytes }) => element(
		"li", {}, swatch(seriesColour(name)), element("span", { textContent: name }),
		element("span", {
			className: "value",
			textContent: index < 0 ? `max ${bytesText(max_bytes)}` : bytesText(bytes[index] || 0),
		}),
	)), ...(hasMoves() ? moveKeys() : []));
}

function moveKeys() {
	const keys = [["moves to fast", "--up"], ["moves to slow", "--down"]];
	if (page.plan.late_bytes.some((bytes) => bytes > 0))
		keys.push(["moves to fast, late by plan", "--late"]);
	return keys.map(([label, colour]) => element(
		"li", {}, swatch(style(colour)), element("span", { textContent: label })));
}

function movesText(stretch) {
	const { up_bytes, down_bytes, count, waits } = page.plan;
	const parts = [];
	if (count[stretch]) {
		parts.push(`moves at its boundary: ${bytesText(up_bytes[stretch])} to fast, `
			+ `${bytesText(down_bytes[stretch])} to slow`);
	}
	if (waits[stretch] >= 0) {
		const before = waits[stretch] > stretch ? " of the previous step" : "";
		parts.push(`waits for the demotions of boundary ${waits[stretch]}${before}`);
	}
	return parts.map((part) => ` · ${part}`).join("");
}

function readout(stretch) {
	if (stretch < 0) {
		const line = timelines.kind;
		return `Peak ${bytesText(line.peak_bytes)} after ${timeText(line.peak_ms)}, in: `
			+ page.places[stretchAt(line.peak_ms)];
	}
	const begin = page.begins_ms[stretch], end = page.begins_ms[stretch + 1];
	return `${page.places[stretch]} · stretch ${stretch}, ${timeText(begin)} + ${timeText(end - begin)}`
		+ (page.plan ? movesText(stretch) : "");
}

function startTimeline() {
	const choices = page.timelines.map(({ group }) => [group, `By ${group}`]);
	choices.sort(([group]) => (group === timelineGroup ? -1 : 1));
	switcher(byId("timeline-groups"), choices, (group) => {
		timelineGroup = group;
		drawCharts();
	});
	drawCharts();
	byId("readout").textContent = readout(-1);
	listen("stretch", (stretch, from) => {
		byId("readout").textContent = readout(stretch);
		if (from === "timeline")
			return;
		// uPlot calls onCursor() for this cursor, too. That call must not change the stretch.
		pointedAt = "map";
		const middle = stretch < 0 ? 0 : (page.begins_ms[stretch] + page.begins_ms[stretch + 1]) / 2;
		const left = stretch < 0 ? -10 : charts[0].valToPos(middle, "x");
		charts[0].setCursor({ left, top: 10 });
		showLegend(stretch < 0 ? -1 : charts[0].cursor.idx);
		pointedAt = null;
	});
}
