/** Where a reader keeps its cursor. Store it with the effects of the events, if they are stored. */
export interface CursorStore {
  load(): string | undefined | Promise<string | undefined>
  /** Undefined removes it. */
  store(cursor: string | undefined): void | Promise<void>
}

/** Keeps the cursor as long as the page lives. */
export function inMemory(cursor?: string): CursorStore {
  return {
    load: () => cursor,
    store(next) {
      cursor = next
    },
  }
}

/** Keeps the cursor in `localStorage` or `sessionStorage`, under a key. */
export function inStorage(storage: Pick<Storage, "getItem" | "setItem" | "removeItem">, key: string): CursorStore {
  return {
    load: () => storage.getItem(key) ?? undefined,
    store: cursor => (cursor === undefined ? storage.removeItem(key) : storage.setItem(key, cursor)),
  }
}
