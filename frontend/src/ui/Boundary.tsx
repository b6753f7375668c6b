/** Keeps a fault in one part of the page from taking the rest with it. */
import { Component, type ReactNode } from "react";

interface BoundaryProps {
  /** What is shown instead. */
  fallback: (error: Error, retry: () => void) => ReactNode;
  /** When this changes, the part is tried again. */
  about?: unknown;
  children: ReactNode;
}

interface BoundaryState {
  error: Error | null;
  about: unknown;
}

export class Boundary extends Component<BoundaryProps, BoundaryState> {
  override state: BoundaryState = { error: null, about: this.props.about };

  static getDerivedStateFromError(error: unknown): Partial<BoundaryState> {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  static getDerivedStateFromProps(props: BoundaryProps, state: BoundaryState) {
    return props.about === state.about ? null : { error: null, about: props.about };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return this.props.fallback(error, () => this.setState({ error: null }));
  }
}
