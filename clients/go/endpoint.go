package weirgate

import (
	"os"
	"regexp"
	"strconv"
	"strings"
)

const (
	urlVariable  = "WEIRGATE_AGENT_URL"
	portVariable = "WEIRGATE_HTTP_PORT" // the extension reads it too
	tokenName    = "WEIRGATE_AGENT_TOKEN"
	defaultPort  = "2774"
)

var (
	agentURL = regexp.MustCompile(`(?i)^http://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?/?$`)
	unixURL  = regexp.MustCompile(`^unix:(?://)?(/[^\x00]+)$`)
	// Kubernetes and links of containers set the port so for a service named weirgate-http.
	ofAService = regexp.MustCompile(`^[a-z]+://`)
	printable  = regexp.MustCompile(`^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$`)
	noPort     = regexp.MustCompile(`:[^0-9:\]][^:]*$`)
)

// An endpoint is where the agent is, and the token that it asks for.
type endpoint struct {
	// network and address are those of net.Dial.
	network, address string
	url              string
	host             string
	isLocal          bool
	// token is that of the application; if it is empty, that of the environment counts.
	token string
}

// endpointOf returns the endpoint of a URL, or of the environment's, or the default one.
func endpointOf(url, token string) (endpoint, error) {
	if url != "" {
		return parseURL(url, token, "URL")
	}
	if url = os.Getenv(urlVariable); url != "" {
		return parseURL(url, token, urlVariable)
	}
	port := os.Getenv(portVariable)
	if port == "" || ofAService.MatchString(port) {
		port = defaultPort
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || !digits.MatchString(port) {
		return endpoint{}, invalid(portVariable + " must be 1 to 65535, got " + quoted(port) + "; set a port, or leave it out")
	}
	return parseURL("http://127.0.0.1:"+port, token, portVariable)
}

func parseURL(url, token, source string) (endpoint, error) {
	if unix := unixURL.FindStringSubmatch(url); unix != nil {
		return endpoint{"unix", unix[1], url, "localhost", true, token}, nil
	}
	found := agentURL.FindStringSubmatch(url)
	port := uint64(80)
	if found != nil && found[2] != "" {
		port, _ = strconv.ParseUint(found[2], 10, 32)
	}
	if found == nil || port == 0 || port > 65_535 {
		correct := source
		if source == "URL" {
			correct = "it"
		}
		text := source + " must be http://host:port or unix:/path, got " + quoted(withoutSecrets(url)) + ": correct " + correct
		return endpoint{}, invalid(text)
	}
	host := strings.ToLower(found[1]) + ":" + strconv.FormatUint(port, 10)
	name := strings.Trim(strings.ToLower(found[1]), "[]")
	isLocal := name == "127.0.0.1" || name == "::1" || name == "localhost"
	return endpoint{"tcp", host, "http://" + host, host, isLocal, token}, nil
}

// withoutSecrets returns a text that should be a URL without what may be a password or a token.
func withoutSecrets(url string) string {
	if strings.HasPrefix(url, "unix:") {
		return url
	}
	scheme, rest := "", url
	if at := strings.Index(url, "://"); at >= 0 {
		scheme, rest = url[:at+3], url[at+3:]
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		scheme, rest = scheme+"***@", rest[at+1:]
	}
	host := rest
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		host = rest[:at]
	}
	more := ""
	if host != rest {
		more = "/..."
	}
	// A port that is none may be a password.
	return scheme + noPort.ReplaceAllString(host, ":***") + more
}

// secret returns the token of today. In a Lambda function the extension asks for the token of the function's credentials,
// which goes to no other machine.
func (e *endpoint) secret() (string, error) {
	source, found := "Token", e.token
	if found == "" {
		source = tokenName
		found = os.Getenv(source)
	}
	if found == "" && e.isLocal && os.Getenv("AWS_LAMBDA_FUNCTION_NAME") != "" {
		// The second one with SnapStart, where there is no first one.
		for _, name := range []string{"AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"} {
			if found == "" {
				source, found = name, os.Getenv(name)
			}
		}
	}
	if found != "" && !printable.MatchString(found) {
		return "", invalid("the agent's token must be printable ASCII, got " + strconv.Itoa(len(found)) +
			" bytes with others: correct " + source)
	}
	return found, nil
}
