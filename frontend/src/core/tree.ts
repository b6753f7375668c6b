/**
 * The tree of a chat's messages: pure functions, every change makes a new tree.
 *
 *     user ── answer ── user ── answer        <- the branch that is shown ends in `active`
 *        └─── answer (made again)
 */
import type { ChatTree, Message } from "./types";

export interface Tree {
  readonly messages: Readonly<Record<string, Message>>;
  /** Children by parent, oldest first; "" holds the roots. */
  readonly children: Readonly<Record<string, readonly string[]>>;
  readonly active: string | null;
}

export const EMPTY_TREE: Tree = { messages: {}, children: {}, active: null };

const key = (parent: string | null) => parent ?? "";

/** The tree of a list; messages whose parent is missing are left out, so a damaged file still opens. */
export function treeOf(list: readonly Message[], active: string | null): Tree {
  const messages: Record<string, Message> = {};
  const children: Record<string, string[]> = {};
  for (const message of list) {
    const orphan = message.parent !== null && !(message.parent in messages);
    if (orphan || message.id in messages) continue;
    messages[message.id] = message;
    const siblings = children[key(message.parent)] ?? [];
    siblings.push(message.id);
    children[key(message.parent)] = siblings;
  }
  const tree = { messages, children, active: null };
  const leaf = active !== null && active in messages ? active : latestLeaf(tree, null);
  return { ...tree, active: leaf };
}

/** All messages, parents before children. */
export function listOf(tree: Tree): Message[] {
  const list: Message[] = [];
  const open = [...childrenOf(tree, null)].reverse();
  for (let id = open.pop(); id !== undefined; id = open.pop()) {
    const message = tree.messages[id];
    if (message) list.push(message);
    open.push(...[...childrenOf(tree, id)].reverse());
  }
  return list;
}

export function childrenOf(tree: Tree, parent: string | null): readonly string[] {
  return tree.children[key(parent)] ?? [];
}

/** The branch that ends in `leaf`, root first. */
export function pathTo(tree: Tree, leaf: string | null): Message[] {
  const path: Message[] = [];
  for (let message = find(tree, leaf); message; message = find(tree, message.parent)) {
    path.push(message);
  }
  return path.reverse();
}

function find(tree: Tree, id: string | null): Message | undefined {
  return id === null ? undefined : tree.messages[id];
}

/** The alternatives of a message, itself among them, oldest first. */
export function siblingsOf(tree: Tree, id: string): readonly string[] {
  const message = tree.messages[id];
  return message ? childrenOf(tree, message.parent) : [];
}

/** The end of the branch that was grown last below `id`; `id` itself without children. */
export function latestLeaf(tree: Tree, id: string | null): string | null {
  let leaf = id;
  for (let next = childrenOf(tree, leaf).at(-1); next !== undefined; ) {
    leaf = next;
    next = childrenOf(tree, leaf).at(-1);
  }
  return leaf;
}

/** With a new message, which becomes the end of what is shown. */
export function withMessage(tree: Tree, message: Message): Tree {
  if (message.id in tree.messages) return withChanged(tree, message);
  const siblings = childrenOf(tree, message.parent);
  return {
    messages: { ...tree.messages, [message.id]: message },
    children: { ...tree.children, [key(message.parent)]: [...siblings, message.id] },
    active: message.id,
  };
}

/** With a message replaced by one of the same id and parent. */
export function withChanged(tree: Tree, message: Message): Tree {
  if (!(message.id in tree.messages)) return tree;
  return { ...tree, messages: { ...tree.messages, [message.id]: message } };
}

/** With the branch shown that runs through `id`. */
export function showing(tree: Tree, id: string): Tree {
  return id in tree.messages ? { ...tree, active: latestLeaf(tree, id) } : tree;
}

/** Without a message and all below it. What is shown then ends at a sibling's branch or the parent. */
export function without(tree: Tree, id: string): Tree {
  const message = tree.messages[id];
  if (!message) return tree;
  const gone = new Set(below(tree, id));
  const keep = <T>(record: Readonly<Record<string, T>>) =>
    Object.fromEntries(Object.entries(record).filter(([name]) => !gone.has(name)));
  const siblings = childrenOf(tree, message.parent);
  const left = siblings.filter((sibling) => sibling !== id);
  const rest = {
    messages: keep(tree.messages),
    children: { ...keep(tree.children), [key(message.parent)]: left },
    active: tree.active,
  };
  if (tree.active === null || !gone.has(tree.active)) return rest;
  const neighbour = left[Math.min(siblings.indexOf(id), left.length - 1)];
  return { ...rest, active: latestLeaf(rest, neighbour ?? message.parent) };
}

/** A message and all below it. */
export function below(tree: Tree, id: string): string[] {
  const ids = [id];
  for (let at = 0; at < ids.length; at++) ids.push(...childrenOf(tree, ids[at] ?? null));
  return ids;
}

export function treeOfChat(chat: ChatTree): Tree {
  return treeOf(chat.messages, chat.active);
}
