// Package hs2 is a thin client of HiveServer2 on its generated Thrift stub. It
// exists because a publish needs what other clients hide: whether a request can
// have reached the server, handles that outlive connection and process, and
// errors that say where they arose.
//
// What it promises:
//
//   - A call ends when its context or its deadline does; the connection that it
//     used is thrown away then, as after every failure of the transport.
//   - Nothing that changes the server is sent twice. Only reads are repeated,
//     once, when the idle connection they were given turns out to be dead.
//   - [TransportError.Sent] is false only when certainly no byte of the request
//     left this process.
//   - A [ServerError] is an answer. Whatever else goes wrong after a request was
//     sent is a [TransportError], also an answer that makes no sense.
//   - It never cancels a statement by itself, neither when a context ends nor
//     when a client is closed.
//   - Secrets (the password, the secret half of a handle) are in no text that it
//     prints; a handle's MarshalText has its secret, for a store.
//
// Sessions and operations live in one server process. A client therefore speaks
// to one address; after a restart of the server all handles are unknown there.
// [Client.Single] tells whether it is the address of one.
//
// The package knows nothing of steps, plans and stores, and decides nothing: what
// an outcome means for a publish is its caller's business.
package hs2
