/** Calls back once when a signal aborts, at once if it has. Returns what forgets the callback. */
export function onAbort(signal: AbortSignal | undefined, callback: () => void): () => void {
  if (signal?.aborted) callback()
  else signal?.addEventListener("abort", callback, { once: true })
  return () => signal?.removeEventListener("abort", callback)
}
