import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "@/app/App";
import { startShell } from "@/desktop/shell";
import { startI18n } from "@/i18n";
import "@/styles/base.css";

startShell();
const root = document.getElementById("root");
if (root) {
  void startI18n().then(() =>
    createRoot(root).render(
      <StrictMode>
        <App />
      </StrictMode>,
    ),
  );
}
