// The Node server of the Durable Streams project, in memory: its fastest way. NODE_PATH says where the package is.
const { DurableStreamTestServer } = require("@durable-streams/server")

const server = new DurableStreamTestServer({ host: "127.0.0.1", port: Number(process.env.PORT) })
server.start().then((url) => console.log(`listening on ${url}`))
process.on("SIGTERM", () => process.exit(0))
