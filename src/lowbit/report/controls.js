// Theme, JSON export, and links from charts to the table.
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function nameTheme() {
  $("theme").textContent = isDark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
}
$("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
nameTheme();

const json = () => JSON.stringify(data, null, 1) + "\n";
function said(button, text) {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => { button.textContent = before; }, 1600);
}
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(json());
  } catch {
    // Pages opened from a file may lack the clipboard API; selecting and copying still works.
    const area = element("textarea", { "aria-hidden": "true" });
    area.value = json();
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) return said($("copy"), "Not allowed");
  }
  said($("copy"), "Copied");
});
$("download").addEventListener("click", () => {
  const address = URL.createObjectURL(new Blob([json()], { type: "application/json" }));
  element("a", { href: address, download: "report.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
});

document.addEventListener("click", (event) => {
  const mark = event.target.closest("#errors [data-row], .worst [data-row]");
  if (mark && body) showLayer(Number(mark.dataset.row));
});
if ($("skipped")) $("skipped").addEventListener("click", () => {
  $("filter").value = $("kind").value = "";
  $("state").value = "skipped";
  redraw();
  $("layers").scrollIntoView();
});
