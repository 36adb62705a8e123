// Sets the theme before anything is drawn; a module would come too late. The switch is in lib/shell.js.
(() => {
  try {
    const theme = localStorage.getItem("penstock-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is off: the theme of the system it is.
  }
})();
