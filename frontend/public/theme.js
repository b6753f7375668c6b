// Sets the theme that was chosen last, before the first paint. Storage may be missing or refused.
(() => {
  let choice = "system";
  try {
    choice = JSON.parse(localStorage.getItem("colibri.prefs") ?? "{}").theme ?? "system";
  } catch {
    // The system's theme will do.
  }
  const dark =
    choice === "dark" || (choice !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
