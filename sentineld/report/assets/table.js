// SPDX-License-Identifier: Apache-2.0
// The table of tensors, of which only the visible rows are elements, and the selected tensor.

const ROW_HEIGHT = 28, SPARE_ROWS = 10, MOVES_SHOWN = 12;

const tensors = page.tensors;
const tensorCount = tensors.name.length;

// The label, width in pixels and text of each column; a column of numbers is sorted by `values`,
// the others by their texts.
const COLUMNS = [
	{ id: "name", label: "Name", width: innerWidth < 700 ? 180 : 300, text: (at) => tensors.name[at] },
	{ id: "kind", label: "Kind", width: 92, text: (at) => kindOf(at).name },
	{ id: "bytes", label: "Size", width: 86, values: tensors.bytes, text: (at) => bytesText(tensors.bytes[at]) },
];
if (page.plan) {
	COLUMNS.push(
		{ id: "fast", label: "Fast", width: 64, values: tensors.fast, text: (at) => (Number.isNaN(tensors.fast[at]) ? "-" : percentText(tensors.fast[at])), title: "Share of its pages and lifetime on the fast tier" },
		{ id: "moves", label: "Moves", width: 68, values: tensors.moves, text: (at) => String(tensors.moves[at]), title: "Planned moves per step" },
		{ id: "reason", label: "Reason", width: 330, text: (at) => tensors.reasons[tensors.reason[at]] },
	);
}
COLUMNS.push(
	{ id: "life", label: "Life", width: 60, values: tensors.life, text: (at) => String(tensors.life[at]), title: "Stretches of its lifetime" },
	{ id: "layers", label: "Layers", width: 68, values: tensors.layers, text: (at) => String(tensors.layers[at]), title: "Different layers in its lifetime" },
	{ id: "read", label: "Read", width: 86, values: tensors.read, text: (at) => bytesText(tensors.read[at]) },
	{ id: "written", label: "Written", width: 86, values: tensors.written, text: (at) => bytesText(tensors.written[at]) },
);
if (tensors.accesses.some((count) => count > 0))
	COLUMNS.push({ id: "accesses", label: "Pages", width: 76, values: tensors.accesses, text: (at) => String(tensors.accesses[at]), title: "Sampled page accesses" });
if (tensors.faults)
	COLUMNS.push({ id: "faults", label: "Faults", width: 72, values: tensors.faults, text: (at) => String(+tensors.faults[at].toPrecision(4)), title: "Page faults in a step" });
COLUMNS.push(
	{ id: "hotness", label: "Hotness", width: 80, values: tensors.hotness, text: (at) => tensors.hotness[at].toFixed(2), title: "Bytes read and written, divided by the size" },
	{ id: "born", label: "Born", width: 220, text: (at) => placeText(tensors.born[at]) },
	{ id: "dies", label: "Dies", width: 220, text: (at) => placeText(tensors.dies[at]) },
);

const sorting = { column: COLUMNS[2], descending: true };
let shownTensors = [];
let searchTexts = null;
let drawnRows = { first: 0, past: 0 };

function placeText(stretch) {
	return stretch < 0 ? "-" : page.places[stretch];
}

function compare(one, other) {
	const { values, text } = sorting.column;
	if (!values) {
		const left = text(one), right = text(other);
		return left < right ? -1 : Number(left > right);
	}
	// Tensors without a value come last in descending order.
	const left = Number.isNaN(values[one]) ? -1 : values[one];
	const right = Number.isNaN(values[other]) ? -1 : values[other];
	return left - right;
}

function sortShown() {
	const sign = sorting.descending ? -1 : 1;
	shownTensors.sort((one, other) =>
		sign * compare(one, other) || tensors.bytes[other] - tensors.bytes[one] || one - other);
}

// The text in which a search looks for its words, in lower case.
function searchText(at) {
	const parts = [tensors.name[at], kindOf(at).name, placeText(tensors.born[at]), placeText(tensors.dies[at])];
	if (page.plan)
		parts.push(tensors.reasons[tensors.reason[at]]);
	if (tensors.placed[at])
		parts.push(`placed ${tensors.placed[at]}`);
	return parts.join("\n").toLowerCase();
}

function search() {
	searchTexts ??= tensors.name.map((_, at) => searchText(at));
	const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
	shownTensors = [];
	let bytes = 0;
	for (let at = 0; at < tensorCount; at++) {
		if (words.every((word) => searchTexts[at].includes(word))) {
			shownTensors.push(at);
			bytes += tensors.bytes[at];
		}
	}
	const omitted = page.omitted ? `; ${page.omitted} smaller ones are not in this page` : "";
	byId("count").textContent = `${shownTensors.length} of ${tensorCount} tensors, ${bytesText(bytes)}${omitted}`;
	sortShown();
	byId("table").scrollTop = 0;
	drawRows();
}

function cell(column, at) {
	const text = column.text(at);
	const made = element("td", { title: text });
	if (column.values)
		made.className = "number";
	if (column.id === "name")
		made.append(swatch(kindOf(at).colour));
	made.append(text);
	return made;
}

function space(rows) {
	const made = element("tr", { className: "space" }, element("td", { colSpan: COLUMNS.length }));
	made.firstChild.style.height = `${rows * ROW_HEIGHT}px`;
	return made;
}

function row(at, number) {
	const made = element("tr", { className: "row", tabIndex: -1 }, ...COLUMNS.map((column) => cell(column, at)));
	made.dataset.tensor = at;
	made.setAttribute("aria-rowindex", String(number + 2));
	made.setAttribute("aria-selected", String(at === current.tensor));
	return made;
}

// Makes elements for the rows that are visible at the table's scroll position. same: the rows to
// show have not changed since the last call.
function drawRows(same = false) {
	const table = byId("table");
	const first = Math.max(Math.floor(table.scrollTop / ROW_HEIGHT) - SPARE_ROWS, 0);
	const past = Math.min(first + Math.ceil(table.clientHeight / ROW_HEIGHT) + 2 * SPARE_ROWS, shownTensors.length);
	if (same && first === drawnRows.first && past === drawnRows.past)
		return;
	drawnRows = { first, past };
	const rows = [space(first)];
	for (let at = first; at < past; at++)
		rows.push(row(shownTensors[at], at));
	rows.push(space(shownTensors.length - past));
	table.querySelector("tbody").replaceChildren(...rows);
}

function markSorting() {
	byId("table").querySelectorAll("th").forEach((head, at) => {
		if (COLUMNS[at] === sorting.column)
			head.setAttribute("aria-sort", sorting.descending ? "descending" : "ascending");
		else
			head.removeAttribute("aria-sort");
	});
}

function sortBy(column) {
	sorting.descending = column === sorting.column ? !sorting.descending : Boolean(column.values);
	sorting.column = column;
	markSorting();
	sortShown();
	drawRows();
}

// Scrolls to a tensor's row if the search shows the tensor.
function reveal(tensor) {
	const table = byId("table");
	const top = shownTensors.indexOf(tensor) * ROW_HEIGHT;
	if (top >= 0 && (top < table.scrollTop || top > table.scrollTop + table.clientHeight - 3 * ROW_HEIGHT))
		table.scrollTop = Math.max(top - table.clientHeight / 2, 0);
	drawRows(true);
}

function markSelected() {
	for (const made of byId("table").querySelectorAll("tr.row"))
		made.setAttribute("aria-selected", String(Number(made.dataset.tensor) === current.tensor));
}

function moveLines(tensor) {
	const { moves } = page.plan;
	const lines = [];
	for (let at = 0; at < moves.tensor.length; at++) {
		if (moves.tensor[at] !== tensor)
			continue;
		const target = moves.tier[at] ? "slow" : "fast";
		const boundary = moves.boundary[at], deadline = moves.deadline[at];
		lines.push(element("li", {
			textContent: `${bytesText(moves.bytes[at])} to ${target} from boundary ${boundary} `
				+ `(${page.places[boundary]}), by boundary ${deadline} (${page.places[deadline]})`,
		}));
	}
	return lines;
}

function showDetails(tensor) {
	const details = byId("details");
	if (tensor < 0) {
		details.replaceChildren(element("p", {
			className: "empty", textContent: "Select a tensor in the table or in the map.",
		}));
		return;
	}
	const { name, colour } = kindOf(tensor);
	const values = COLUMNS.filter(({ id }) => !["name", "kind", "reason"].includes(id))
		.map((column) => [column.title ? `${column.label} (${column.title.toLowerCase()})` : column.label, column.text(tensor)]);
	const list = element("dl");
	for (const [label, text] of [["Kind", name], ...values]) {
		const [short] = label.split(" (");
		list.append(element("dt", { textContent: short, title: label }), element("dd", { textContent: text }));
	}
	if (tensors.placed[tensor])
		list.append(element("dt", { textContent: "Placed" }), element("dd", { textContent: `${tensors.placed[tensor]}, by the script` }));
	const title = element("h3", {}, swatch(colour), ` ${tensors.name[tensor]}`);
	const parts = [title];
	if (page.plan)
		parts.push(element("p", { className: "reason", textContent: tensors.reasons[tensors.reason[tensor]] || "no reason given" }));
	parts.push(list);
	if (page.plan) {
		const lines = moveLines(tensor);
		if (lines.length > MOVES_SHOWN)
			lines.splice(MOVES_SHOWN, Infinity, element("li", { textContent: `and ${lines.length - MOVES_SHOWN} more moves` }));
		if (lines.length)
			parts.push(element("ul", {}, ...lines));
	}
	details.replaceChildren(...parts);
	details.scrollTop = 0;
}

function onRowKey(event) {
	const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
	if (!step || !shownTensors.length)
		return;
	event.preventDefault();
	const at = shownTensors.indexOf(current.tensor) + step;
	tell("tensor", shownTensors[Math.min(Math.max(at, 0), shownTensors.length - 1)], "keys");
}

function startTable() {
	const table = byId("table");
	for (const column of COLUMNS) {
		const button = element("button", { type: "button", textContent: column.label, title: column.title || "" });
		button.addEventListener("click", () => sortBy(column));
		const head = element("th", { scope: "col" }, button);
		head.style.width = `${column.width}px`;
		if (column.values)
			head.className = "number";
		table.querySelector("thead tr").append(head);
	}
	const whole = COLUMNS.reduce((sum, { width }) => sum + width, 0);
	table.firstElementChild.style.width = `${whole}px`;
	table.firstElementChild.setAttribute("aria-rowcount", String(tensorCount + 1));
	table.addEventListener("scroll", () => drawRows(true));
	table.addEventListener("keydown", onRowKey);
	table.querySelector("tbody").addEventListener("click", (event) => {
		const chosen = event.target.closest("tr.row");
		if (chosen)
			tell("tensor", Number(chosen.dataset.tensor), "table");
	});
	byId("search").addEventListener("input", search);
	listen("tensor", (tensor, from) => {
		showDetails(tensor);
		if (from !== "table")
			reveal(tensor);
		markSelected();
	});
	markSorting();
	search();
	showDetails(-1);
}
