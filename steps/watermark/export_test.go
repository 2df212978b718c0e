package watermark

// WithSeam passes every call of a FileTarget to the operating system that has
// or settles an effect, and every read of a value, through do.
func WithSeam(do func(op string, run func() error) error) FilesOption {
	return func(o *filesOptions) { o.do = do }
}

// FileOf is the path of a watermark below the directory.
var FileOf = fileOf
