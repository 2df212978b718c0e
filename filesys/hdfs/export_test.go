package hdfs

// Opaque makes a file system behave as if its requests could not be read on
// the way out.
func Opaque(o *Options) { o.opaque = true }
