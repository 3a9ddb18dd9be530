// SPDX-License-Identifier: Apache-2.0
// The page's figures, and the functions that all parts of the page use.

const ARRAYS = {
	u1: Uint8Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

// Decodes a table of numbers from page_data.py.
function unpacked(table) {
	const text = atob(table.data);
	const bytes = new Uint8Array(text.length);
	for (let at = 0; at < text.length; at++)
		bytes[at] = text.charCodeAt(at);
	return new ARRAYS[table.type](bytes.buffer);
}

// Replaces each packed table of numbers in `value`, at any depth, with a typed array.
function decoded(value) {
	if (Array.isArray(value))
		return value.length && typeof value[0] === "object" ? value.map(decoded) : value;
	if (value === null || typeof value !== "object")
		return value;
	if (typeof value.data === "string" && value.type in ARRAYS)
		return unpacked(value);
	return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, decoded(part)]));
}

const page = decoded(JSON.parse(document.getElementById("data").textContent));
const stretchCount = page.places.length;

function byId(id) {
	return document.getElementById(id);
}

// Creates an element. Texts are never parsed as HTML, because names are untrusted.
function element(tag, properties = {}, ...children) {
	const made = Object.assign(document.createElement(tag), properties);
	made.append(...children);
	return made;
}

function swatch(colour, className = "swatch") {
	const made = element("span", { className });
	made.style.background = colour;
	return made;
}

function style(name) {
	return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Red, green and blue of a custom property that has the form #rrggbb.
function rgb(name) {
	const number = parseInt(style(name).slice(1), 16);
	return [number >> 16, (number >> 8) & 255, number & 255];
}

function mixed(from, to, share) {
	return from.map((value, at) => value + (to[at] - value) * share);
}

// Formats a number of bytes as format_bytes() in sentineld/base/units.py does.
function bytesText(count) {
	for (const unit of ["B", "KiB", "MiB", "GiB"]) {
		if (Math.abs(count) < 1024)
			return unit === "B" ? `${count.toFixed(0)} B` : `${count.toFixed(1)} ${unit}`;
		count /= 1024;
	}
	return `${count.toFixed(1)} TiB`;
}

function timeText(ms) {
	if (ms >= 1000)
		return `${(ms / 1000).toFixed(3)} s`;
	return `${ms.toFixed(ms < 10 ? 3 : 1)} ms`;
}

function percentText(share) {
	const percent = share * 100;
	return `${percent.toFixed(percent > 0 && percent < 10 ? 1 : 0)} %`;
}

// The stretch that contains a time of the step.
function stretchAt(ms) {
	let low = 0, high = stretchCount - 1;
	while (low < high) {
		const middle = (low + high + 1) >> 1;
		if (page.begins_ms[middle] <= ms)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

function kindOf(tensor) {
	const [name, colour] = page.kinds[page.tensors.kind[tensor]];
	return { name, colour };
}

// Fills a group of buttons of which one is pressed; calls choose(value) for the pressed one.
function switcher(group, choices, choose) {
	if (choices.length < 2)
		return;
	const buttons = choices.map(([value, label]) => {
		const button = element("button", { type: "button", textContent: label });
		button.addEventListener("click", () => {
			press(button);
			choose(value);
		});
		return button;
	});
	const press = (pressed) => {
		for (const button of buttons)
			button.setAttribute("aria-pressed", String(button === pressed));
	};
	press(buttons[0]);
	group.append(...buttons);
}

// The stretch under the pointer and the selected tensor, which all parts of the page share.
const listeners = { stretch: [], tensor: [] };
const current = { stretch: -1, tensor: -1 };

function listen(what, listener) {
	listeners[what].push(listener);
}

function tell(what, value, from) {
	if (current[what] === value)
		return;
	current[what] = value;
	for (const listener of listeners[what])
		listener(value, from);
}
