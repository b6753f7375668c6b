/** Chats that our own server keeps. */
import * as api from "@/api/chats";
import { HttpError } from "@/api/http";
import { exportJson, readChat, readSettings } from "@/core/exchange";
import type { ChatStore } from "./chatstore";

const PAGE = 200;
const object = (value: unknown) => value as Record<string, unknown>;

export const serverChats: ChatStore = {
  kind: "server",
  async list() {
    const rows = [];
    for (let before: string | null = null, more = true; more; ) {
      const page = await api.listChats(before, PAGE);
      rows.push(...page.chats);
      before = page.next;
      more = before !== null;
    }
    return rows.map((row) => ({ ...row, settings: readSettings(row.settings) }));
  },
  async get(id) {
    try {
      return readChat(object(await api.getChat(id)), Date.now());
    } catch (error) {
      if (error instanceof HttpError && error.status === 404) return null;
      throw error;
    }
  },
  async create({ id, title, settings, pinned }) {
    try {
      await api.createChat({ id, title, settings, pinned });
    } catch (error) {
      // The answer to an earlier try was lost.
      if (!(error instanceof HttpError && error.status === 409)) throw error;
    }
  },
  async change(id, change) {
    await api.changeChat(id, change);
  },
  remove: api.deleteChat,
  async putMessage(chat, message, active) {
    await api.putMessage(chat, message, active);
  },
  async removeMessage(chat, id) {
    try {
      await api.deleteMessage(chat, id);
    } catch (error) {
      if (!(error instanceof HttpError && error.status === 404)) throw error;
    }
  },
  async search(words) {
    const hits = await api.searchChats(words);
    return hits.map(({ chat, message, pieces }) => ({ ...chat, message, pieces }));
  },
  async all() {
    const { chats } = await api.exportChats();
    return chats.map((chat) => readChat(object(chat), Date.now()));
  },
  async take(chats) {
    return (await api.importChats(JSON.parse(exportJson(chats)))).chats.length;
  },
  async presets() {
    const presets = await api.listPresets();
    return presets.map((preset) => ({ ...preset, settings: readSettings(preset.settings) }));
  },
  async putPreset(preset) {
    await api.putPreset(preset);
  },
  removePreset: api.deletePreset,
};
