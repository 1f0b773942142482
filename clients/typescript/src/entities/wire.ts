/** What happened to an entity. */
export type Action = "CREATE" | "UPDATE" | "DELETE"

/** A change of an entity: what is cached of it is not valid any more. */
export interface Change {
  entityId: string
  action: Action
  /** Grows with each change of the entity. */
  version: number
  /** `access`: who may see it has changed. */
  reason?: string
}

/** Changes that came together. */
export interface Invalidation {
  entityCode: string
  changes: Change[]
}

/** All that is cached may be wrong: of one type, or of all. */
export interface Resync {
  entityCode?: string
  /** `cursor-expired`, `source-reset`, `overflow` or `truncated`. */
  reason: string
}

/** What the server does not subscribe to, or not any more. */
export interface Denied {
  entityCode: string
  /** Absent for the whole type. */
  entityId?: string
  /** `InvalidId` or `Forbidden`. */
  code: string
}

export interface ServerFrame {
  type: string
  payload?: {
    requestId?: string
    cursor?: string
    entityCode?: string
    changes?: Change[]
    denied?: { entityId: string; code: string }[]
    reason?: string
    expiresIn?: number
    heartbeatMs?: number
    code?: string
    message?: string
    retryAfter?: number
    count?: number
    removed?: { entityCode: string; entityIds?: string[] }[]
  }
}
