/** What is open on the page, short notices, what screen readers are told, and unsent text. */
import { create } from "zustand";
import type { Part } from "@/core/types";

export type Sheet = "chat-settings" | "shortcuts" | "palette" | "sidebar" | "runtime";

export interface Notice {
  id: number;
  tone: "info" | "problem";
  text: string;
}

export interface Draft {
  text: string;
  files: Extract<Part, { type: "file" }>[];
}

interface UiState {
  sheet: Sheet | null;
  notices: Notice[];
  announcement: string;
  /** Unsent text by chat; "" is the new chat. */
  drafts: Record<string, Draft>;
}

export const useUi = create<UiState>()(() => ({
  sheet: null,
  notices: [],
  announcement: "",
  drafts: {},
}));

export const openSheet = (sheet: Sheet | null): void => useUi.setState({ sheet });

let nextNotice = 1;
const NOTICE_MS = 8000;

export function notify(tone: Notice["tone"], text: string): void {
  const notice = { id: nextNotice++, tone, text };
  useUi.setState(({ notices }) => ({ notices: [...notices.slice(-3), notice] }));
  setTimeout(() => dismiss(notice.id), NOTICE_MS);
}

export function dismiss(id: number): void {
  useUi.setState(({ notices }) => ({ notices: notices.filter((notice) => notice.id !== id) }));
}

/** Says a sentence to screen readers, once. */
export function announce(announcement: string): void {
  useUi.setState({ announcement });
}

export function setDraft(chat: string, draft: Draft | null): void {
  useUi.setState(({ drafts }) => {
    const { [chat]: _, ...rest } = drafts;
    return { drafts: draft ? { ...rest, [chat]: draft } : rest };
  });
}
