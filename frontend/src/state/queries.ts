/** The cache of what servers answer: one client, and the names under which things are in it. */
import { QueryCache, QueryClient } from "@tanstack/react-query";
import { HttpError } from "@/api/http";
import { sessionLost } from "./session";

export const queryClient = new QueryClient({
  queryCache: new QueryCache({
    onError(error) {
      // The login has ended: asking who we are leads to the page that asks for the key.
      if (error instanceof HttpError && error.status === 401) sessionLost();
    },
  }),
  defaultOptions: {
    queries: {
      staleTime: 30_000,
      refetchOnWindowFocus: true,
      // What the server refuses, it will refuse again.
      retry: (failures, error) =>
        failures < 2 && !(error instanceof HttpError && error.status < 500),
    },
  },
});

export const keys = {
  models: (base: string) => ["models", base],
  chats: ["chats"],
  search: (words: string) => ["chats", "search", words],
  presets: ["presets"],
  installed: ["installed"],
  fits: ["fit"],
  fit: (name: string) => ["fit", name],
  tasks: ["tasks"],
  server: ["server"],
  licences: ["licences"],
  requests: ["requests"],
  atlas: (model: string) => ["atlas", model],
};

export function chatsChanged(): void {
  void queryClient.invalidateQueries({ queryKey: keys.chats });
}
