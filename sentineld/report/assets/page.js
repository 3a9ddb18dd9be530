// SPDX-License-Identifier: Apache-2.0
// Fills the page, and draws it again for another width or colour scheme.

function showFacts() {
	byId("title").textContent = page.title;
	for (const [name, value] of page.facts) {
		byId("facts").append(element("div", {},
			element("dt", { textContent: name }), element("dd", { textContent: value })));
	}
	byId("notes").append(...page.notes.map((note) => element("li", { textContent: note })));
}

function redraw() {
	drawCharts();
	drawMap();
	drawRows();
}

showFacts();
startTimeline();
startMap();
startTable();

let drawnWidth = innerWidth;
addEventListener("resize", () => {
	if (innerWidth === drawnWidth)
		return;
	drawnWidth = innerWidth;
	redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
	paintMap();
	redraw();
});

// The time from the beginning of navigation until the first picture, for tests.
requestAnimationFrame(() => setTimeout(() => {
	document.documentElement.dataset.drawnMs = performance.now().toFixed(0);
}));
