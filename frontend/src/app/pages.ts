/**
 * The pages of the dashboard: a new one is a line here (and its name in the page's words), which
 * gives it its address, its place in the navigation and in Ctrl-K, and its key.
 */
import {
  Boxes,
  BrainCircuit,
  type LucideIcon,
  MessagesSquare,
  Orbit,
  Server,
  Settings,
} from "lucide-react";
import { type ComponentType, lazy } from "react";
import { ChatPage } from "@/chat/ChatPage";

export interface Page {
  /** Also the key of its name: `nav.<name>`. */
  name: "chat" | "brain" | "atlas" | "models" | "server" | "settings";
  /** What the address begins with. */
  path: string;
  /** All addresses of the page, in the router's notation. */
  routes: string[];
  icon: LucideIcon;
  component: ComponentType;
  /** In the navigation it stands at the bottom. */
  last?: boolean;
}

export const PAGES: readonly Page[] = [
  {
    name: "chat",
    path: "/chat",
    routes: ["/chat", "/chat/:id"],
    icon: MessagesSquare,
    component: ChatPage,
  },
  {
    name: "brain",
    path: "/brain",
    routes: ["/brain"],
    icon: BrainCircuit,
    component: lazy(() => import("@/brain/BrainPage")),
  },
  {
    name: "atlas",
    path: "/atlas",
    routes: ["/atlas"],
    icon: Orbit,
    component: lazy(() => import("@/pages/AtlasPage")),
  },
  {
    name: "models",
    path: "/models",
    routes: ["/models"],
    icon: Boxes,
    component: lazy(() => import("@/models/ModelsPage")),
  },
  {
    name: "server",
    path: "/server",
    routes: ["/server"],
    icon: Server,
    component: lazy(() => import("@/server/ServerPage")),
  },
  {
    name: "settings",
    path: "/settings",
    routes: ["/settings"],
    icon: Settings,
    component: lazy(() => import("@/pages/SettingsPage")),
    last: true,
  },
];
