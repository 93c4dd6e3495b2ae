package weirgate

import (
	"regexp"
	"strconv"
	"strings"
)

const hidden = "***"

var encoded = regexp.MustCompile(`(?i)(?:\\u00|%)([0-9a-f]{2})`)

// hiding takes a secret out of what an error or a field of an answer shows.
type hiding string

// value returns a JSON value without the secret, in keys too.
func (h hiding) value(value any) any {
	switch of := value.(type) {
	case string:
		return h.text(of)
	case []any:
		for at, part := range of {
			of[at] = h.value(part)
		}
	case map[string]any:
		whole := make(map[string]any, len(of))
		for name, part := range of {
			whole[h.text(name)] = h.value(part)
		}
		return whole
	}
	return value
}

// text returns a text without the secret. One that has it in another case or encoding, such as JSON within JSON, is hidden
// whole.
func (h hiding) text(text string) string {
	if h == "" {
		return text
	}
	text = strings.ReplaceAll(text, string(h), hidden)
	secret, rest := bare(string(h)), text
	for encodings := 0; encodings <= 3; encodings++ {
		if secret != "" && strings.Contains(bare(rest), secret) {
			return hidden
		}
		rest = encoded.ReplaceAllStringFunc(rest, func(found string) string {
			code, err := strconv.ParseUint(found[len(found)-2:], 16, 8)
			if err != nil {
				return found
			}
			return string(rune(code))
		})
	}
	return text
}

// bare returns the text in lowercase and without backslashes, whose number depends on the encodings.
func bare(text string) string { return strings.ToLower(strings.ReplaceAll(text, `\`, "")) }
