// Before anything is drawn: dark or light, as it was chosen last.
"use strict";
try {
  const theme = localStorage.getItem("tw-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* Nothing may be stored here. */ }
