"""A service with one of each part, for the tests of the contract. It changes nothing outside its folder."""

from greetings.service import SERVICE as SERVICE
