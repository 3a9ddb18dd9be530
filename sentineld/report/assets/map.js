// SPDX-License-Identifier: Apache-2.0
// The heatmap of addresses and layers, with the names of the tensors under the pointer.

const MAP_HEIGHT = 480, MAP_LEFT = 96, MAP_TOP = 20, LABELS_HEIGHT = 120;
const LABEL_SPACE = 14, ROW_TICKS = 10, SHOWN_TENSORS = 6, MEASURED_LABELS = 500;
const MAP_FONT = "11px system-ui, sans-serif";
// As in page_data.py.
const FAST_LEVELS = 61, CHOSEN_CELL = 63, UP_CELL = 64, DOWN_CELL = 128, UNKNOWN_CELL = 2;

let map = page.maps[page.maps.length - 1];
let columnScale = "layers";
let mapImage = null;

// The part of the canvas that shows cells, in CSS pixels.
function mapArea() {
	const width = byId("map").clientWidth;
	return { left: MAP_LEFT, top: MAP_TOP, width: Math.max(width - MAP_LEFT - 2, 50), height: MAP_HEIGHT };
}

// The left edge of a stretch, as a share of the area's width.
function stretchShare(stretch) {
	if (columnScale === "layers")
		return stretch / stretchCount;
	return page.begins_ms[stretch] / (page.begins_ms[stretchCount] || 1);
}

function stretchUnder(share) {
	if (columnScale === "layers")
		return Math.min(Math.max(Math.floor(share * stretchCount), 0), stretchCount - 1);
	return stretchAt(share * page.begins_ms[stretchCount]);
}

function columnOf(stretch) {
	let column = 0;
	while (column + 1 < map.columns.length && map.columns[column + 1] <= stretch)
		column++;
	return column;
}

function columnEnd(column) {
	return column + 1 < map.columns.length ? map.columns[column + 1] : stretchCount;
}

function recordedColours() {
	const cool = rgb("--cool"), hot = rgb("--hot");
	const states = [rgb("--dead"), rgb("--idle"), rgb("--unknown")];
	return (cell, accessed) => (accessed ? mixed(cool, hot, accessed / 255) : states[cell]);
}

// The hue shows the tier, and the strength the share of accessed pages.
function plannedColours() {
	const dead = rgb("--dead"), fast = rgb("--fast"), slow = rgb("--slow"), kernel = rgb("--kernel");
	const up = rgb("--moving-up"), down = rgb("--moving-down");
	return (cell, accessed) => {
		if (!cell)
			return dead;
		if (cell & UP_CELL)
			return up;
		if (cell & DOWN_CELL)
			return down;
		const tier = cell === CHOSEN_CELL ? kernel : mixed(slow, fast, (cell - 1) / FAST_LEVELS);
		return mixed(dead, tier, accessed ? 0.6 + 0.4 * accessed / 255 : 0.28);
	};
}

function colours() {
	return map.name === "planned" ? plannedColours() : recordedColours();
}

function paintCells() {
	const { rows, cells, accessed } = map;
	const columns = map.columns.length;
	const canvas = element("canvas", { width: columns, height: rows });
	const context = canvas.getContext("2d");
	const image = context.createImageData(columns, rows);
	const colour = colours();
	const known = new Map();
	for (let at = 0; at < cells.length; at++) {
		const key = cells[at] * 256 + accessed[at];
		let value = known.get(key);
		if (value === undefined) {
			const [red, green, blue] = colour(cells[at], accessed[at]).map(Math.round);
			value = [red, green, blue];
			known.set(key, value);
		}
		image.data.set(value, at * 4);
		image.data[at * 4 + 3] = 255;
	}
	context.putImageData(image, 0, 0);
	mapImage = canvas;
}

function sized(canvas, width, height) {
	canvas.width = Math.round(width * devicePixelRatio);
	canvas.height = Math.round(height * devicePixelRatio);
	canvas.style.height = `${height}px`;
	const context = canvas.getContext("2d");
	context.scale(devicePixelRatio, devicePixelRatio);
	return context;
}

function drawMap() {
	const area = mapArea();
	const width = byId("map").clientWidth;
	const context = sized(byId("map-image"), width, area.top + area.height + labelsHeight());
	context.imageSmoothingEnabled = false;
	// Columns begin at whole pixels, because the edge of a column between two pixels is blended.
	const across = (stretch) => Math.round((area.left + stretchShare(stretch) * area.width)
		* devicePixelRatio) / devicePixelRatio;
	const columns = map.columns.length;
	for (let column = 0; column < columns; column++) {
		const left = across(map.columns[column]), right = across(columnEnd(column));
		context.drawImage(mapImage, column, 0, 1, map.rows,
			left, area.top, Math.max(right - left, 1 / devicePixelRatio), area.height);
	}
	context.strokeStyle = style("--line");
	context.strokeRect(area.left - 0.5, area.top - 0.5, area.width + 1, area.height + 1);
	context.font = MAP_FONT;
	drawBorders(context, area);
	drawAddresses(context, area);
	drawPhaseNames(context, area);
	drawLayerNames(context, area);
	drawMarks();
}

function drawBorders(context, area) {
	context.strokeStyle = style("--faint");
	for (const border of map.borders) {
		const height = area.top + border / map.pages * area.height;
		context.beginPath();
		context.moveTo(area.left, height);
		context.lineTo(area.left + area.width, height);
		context.stroke();
	}
}

function drawAddresses(context, area) {
	context.fillStyle = style("--faint");
	context.textAlign = "right";
	context.textBaseline = "middle";
	const ticks = [];
	const wanted = map.borders.map((border) => Math.floor(border / map.pages * map.rows));
	for (let tick = 0; tick < ROW_TICKS; tick++)
		wanted.push(Math.floor(tick * map.rows / ROW_TICKS));
	for (const row of wanted) {
		const height = area.top + (row + 0.5) / map.rows * area.height;
		if (ticks.every((other) => Math.abs(other - height) > 18)) {
			ticks.push(height);
			context.fillText(map.places[row], area.left - 6, height, MAP_LEFT - 8);
		}
	}
}

function drawPhaseNames(context, area) {
	context.textAlign = "left";
	context.textBaseline = "alphabetic";
	for (const [name, first, past] of page.phases) {
		const left = area.left + stretchShare(first) * area.width;
		const right = area.left + stretchShare(past) * area.width;
		context.strokeStyle = style("--faint");
		context.beginPath();
		context.moveTo(left, area.top - 14);
		context.lineTo(left, area.top);
		context.stroke();
		context.fillStyle = style("--text");
		if (right - left > context.measureText(name).width + 8)
			context.fillText(name, left + 4, area.top - 5);
	}
}

// The height of the longest name of a layer, at most LABELS_HEIGHT.
function labelsHeight() {
	const context = element("canvas").getContext("2d");
	context.font = MAP_FONT;
	const widths = page.runs.slice(0, MEASURED_LABELS).map(([name]) => context.measureText(name).width);
	return Math.min(Math.max(...widths, 0) + 12, LABELS_HEIGHT);
}

// Shortens a text from the left, where the names of layers differ least.
function fitted(context, text, width) {
	if (context.measureText(text).width <= width)
		return text;
	let rest = text;
	while (rest && context.measureText(`…${rest}`).width > width)
		rest = rest.slice(1);
	return `…${rest}`;
}

// Draws the names of as many layers as there is room for.
function drawLayerNames(context, area) {
	context.fillStyle = style("--faint");
	context.textAlign = "right";
	context.textBaseline = "middle";
	let last = -LABEL_SPACE;
	for (const [name, first, past] of page.runs) {
		const middle = (stretchShare(first) + stretchShare(past)) / 2 * area.width;
		if (!name || middle - last < LABEL_SPACE)
			continue;
		last = middle;
		context.save();
		context.translate(area.left + middle, area.top + area.height + 5);
		context.rotate(-Math.PI / 2);
		context.fillText(fitted(context, name, LABELS_HEIGHT - 8), 0, 0);
		context.restore();
	}
}

// Draws the stretch under the pointer and the outlines of the selected tensor.
function drawMarks() {
	const area = mapArea();
	const context = sized(byId("map-marks"), byId("map").clientWidth, area.top + area.height);
	const across = (stretch) => area.left + stretchShare(stretch) * area.width;
	const down = (place) => area.top + place / map.pages * area.height;
	if (current.stretch >= 0) {
		context.fillStyle = style("--text");
		context.globalAlpha = 0.12;
		const left = across(current.stretch);
		context.fillRect(left, area.top, Math.max(across(current.stretch + 1) - left, 1), area.height);
		context.globalAlpha = 1;
	}
	if (current.tensor < 0)
		return;
	const { tensor, begin, past, first, last } = map.boxes;
	for (let box = 0; box < tensor.length; box++) {
		if (tensor[box] !== current.tensor)
			continue;
		const left = across(first[box]), top = down(begin[box]);
		const width = Math.max(across(last[box] + 1) - left, 3);
		const height = Math.max(down(past[box]) - top, 3);
		context.lineWidth = 4;
		context.strokeStyle = style("--panel");
		context.strokeRect(left, top, width, height);
		context.lineWidth = 2;
		context.strokeStyle = style("--text");
		context.strokeRect(left, top, width, height);
	}
}

// The cell at a point of the map, and its tensors: first those that contain the point, then the
// others of the cell. null: outside the map.
function cellAt(x, y) {
	const area = mapArea();
	const across = (x - area.left) / area.width, down = (y - area.top) / area.height;
	if (across < 0 || across >= 1 || down < 0 || down >= 1)
		return null;
	const stretch = stretchUnder(across), column = columnOf(stretch);
	const row = Math.min(Math.floor(down * map.rows), map.rows - 1);
	const place = Math.floor(down * map.pages);
	const low = Math.floor(row * map.pages / map.rows), high = Math.floor((row + 1) * map.pages / map.rows);
	const exact = [], others = [];
	const { tensor, begin, past, first, last } = map.boxes;
	for (let box = 0; box < tensor.length; box++) {
		if (first[box] > stretch || last[box] < stretch || begin[box] >= high || past[box] <= low)
			continue;
		(begin[box] <= place && place < past[box] ? exact : others).push(tensor[box]);
	}
	return { stretch, row, column, tensors: [...new Set([...exact, ...others])] };
}

function stateText(cell, accessed) {
	const seen = `${percentText(accessed / 255)} of the pages accessed`;
	if (!cell)
		return accessed ? `${seen}, no live tensor` : "no live tensor";
	if (map.name === "recorded") {
		if (!accessed && cell === UNKNOWN_CELL)
			return "live; an access may have been missed";
		return accessed ? seen : "live, not accessed";
	}
	const moves = (cell & UP_CELL ? ", moves to fast start" : "")
		+ (cell & DOWN_CELL ? ", moves to slow start" : "");
	const tier = cell & (UP_CELL - 1);
	if (tier === CHOSEN_CELL)
		return `tier chosen by the kernel, ${seen}${moves}`;
	return `${percentText((tier - 1) / FAST_LEVELS)} of the pages fast, ${seen}${moves}`;
}

function tooltipLines(found) {
	const at = found.row * map.columns.length + found.column;
	const lines = found.tensors.slice(0, SHOWN_TENSORS).map((tensor) => {
		const { name, colour } = kindOf(tensor);
		return element("div", { className: "name" }, swatch(colour),
			element("span", { textContent: page.tensors.name[tensor] }),
			element("span", {
				className: "size", textContent: `${name}, ${bytesText(page.tensors.bytes[tensor])}`,
			}));
	});
	const rest = found.tensors.length - SHOWN_TENSORS;
	if (rest > 0)
		lines.push(element("div", { className: "more", textContent: `and ${rest} more tensors` }));
	for (const text of [page.places[found.stretch], `${map.places[found.row]}: ${stateText(map.cells[at], map.accessed[at])}`])
		lines.push(element("div", { className: "more", textContent: text }));
	return lines;
}

function showTooltip(event, found) {
	const tooltip = byId("tooltip");
	tooltip.hidden = !found;
	if (!found)
		return;
	tooltip.replaceChildren(...tooltipLines(found));
	const { width, height } = tooltip.getBoundingClientRect();
	const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 10 : event.clientX + 14;
	const top = event.clientY + 14 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 14;
	tooltip.style.transform = `translate(${Math.max(left, 4)}px, ${Math.max(top, 4)}px)`;
}

function onPointer(event) {
	const found = cellAt(event.offsetX, event.offsetY);
	showTooltip(event, found);
	tell("stretch", found ? found.stretch : -1, "map");
}

function mapLegend() {
	const key = (colour, text, className) => element(
		"li", {}, swatch(colour, className), element("span", { textContent: text }));
	const keys = [];
	if (map.name === "planned") {
		const faint = (name) => `color-mix(in srgb, ${style(name)} 28%, ${style("--dead")})`;
		const scale = (name) => `linear-gradient(to right, ${faint(name)}, ${style(name)})`;
		keys.push(key(scale("--fast"), "fast, not accessed to accessed", "swatch scale"));
		keys.push(key(scale("--slow"), "slow", "swatch scale"));
		if (map.cells.includes(CHOSEN_CELL))
			keys.push(key(style("--kernel"), "tier chosen by the kernel"));
		keys.push(key(style("--moving-up"), "move to fast starts"));
		keys.push(key(style("--moving-down"), "move to slow starts"));
	} else {
		const seen = map.source === "module" ? "sampled pages" : "pages that operators access";
		keys.push(key(`linear-gradient(to right, ${style("--cool")}, ${style("--hot")})`,
			`${seen}, few to all of a cell`, "swatch scale"));
		keys.push(key(style("--idle"), "live, not accessed"));
		if (map.cells.includes(UNKNOWN_CELL))
			keys.push(key(style("--unknown"), "unknown: an access may have been missed"));
		keys.push(key(style("--dead"), "no live tensor"));
	}
	byId("map-legend").replaceChildren(...keys);
}

function paintMap() {
	paintCells();
	mapLegend();
	drawMap();
}

function startMap() {
	const labels = { recorded: "As recorded", planned: "As planned" };
	switcher(byId("map-names"), [...page.maps].reverse().map((one) => [one, labels[one.name]]), (chosen) => {
		map = chosen;
		paintMap();
	});
	switcher(byId("map-scales"), [["layers", "Equal columns"], ["time", "By time"]], (chosen) => {
		columnScale = chosen;
		drawMap();
	});
	const marks = byId("map-marks");
	marks.addEventListener("pointermove", onPointer);
	marks.addEventListener("pointerleave", () => {
		byId("tooltip").hidden = true;
		tell("stretch", -1, "map");
	});
	marks.addEventListener("click", (event) => {
		const found = cellAt(event.offsetX, event.offsetY);
		if (found && found.tensors.length)
			tell("tensor", found.tensors[0], "map");
	});
	listen("stretch", drawMarks);
	listen("tensor", drawMarks);
	paintMap();
}
